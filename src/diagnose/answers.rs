//! The answers of annotators to one instance, divided between their labels.

/// The share of an annotator's answer to one instance that a label has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ShareOfLabel {
    pub annotator: u32,
    pub label: u32,
    pub share: f64,
}

/// The answers to one instance, each divided between its labels by their weights: answers drawn from a repeated one agree as
/// often as its shares do, where its most frequent label, or only the answers without a contradiction, would agree too often.
#[derive(Debug, Clone, Default)]
pub(super) struct SharedAnswers {
    given: Vec<ShareOfLabel>,
}

impl SharedAnswers {
    /// Reads the (annotator, label, weight) of one instance, those of an annotator adjacent; of more than `most` annotators a
    /// share at equal distances, from the start that `from` gives.
    pub(super) fn read(
        &mut self,
        triples: impl Iterator<Item = (u32, u32, f64)>,
        most: usize,
        from: usize,
    ) {
        self.given.clear();
        let weighted = triples.filter(|(_, _, weight)| *weight > 0.0);
        self.given.extend(weighted.map(|(annotator, label, share)| ShareOfLabel {
            annotator,
            label,
            share,
        }));
        let stride = self.annotators().count().div_ceil(most).max(1);
        if stride > 1 {
            let (mut n, mut last) = (0, self.given[0].annotator);
            self.given.retain(|v| {
                n += usize::from(v.annotator != last);
                last = v.annotator;
                n % stride == from % stride
            });
        }
        // Singleton annotators have the last columns, whatever their number.
        self.given.sort_unstable_by(|x, y| {
            (x.annotator, x.label).cmp(&(y.annotator, y.label)).then(x.share.total_cmp(&y.share))
        });
        for answer in self.given.chunk_by_mut(|x, y| x.annotator == y.annotator) {
            let sum: f64 = answer.iter().map(|v| v.share).sum();
            answer.iter_mut().for_each(|v| v.share /= sum);
        }
    }

    /// The answer of each annotator.
    pub(super) fn annotators(&self) -> impl Iterator<Item = &[ShareOfLabel]> {
        self.given.chunk_by(|x, y| x.annotator == y.annotator)
    }
}
