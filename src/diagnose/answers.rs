//! The labels of annotators who gave an instance one label only.

/// (annotator, label) of each annotator of one instance who gave one label only, in the order of arrival. The labels of an
/// annotator arrive one after the other; a repeated one is no second opinion.
#[derive(Debug, Clone, Default)]
pub(super) struct SingleAnswers {
    given: Vec<(u32, u32)>,
    /// The last annotator with several labels.
    several: Option<u32>,
}

impl SingleAnswers {
    pub(super) fn clear(&mut self) {
        self.given.clear();
        self.several = None;
    }

    pub(super) fn add(&mut self, annotator: u32, label: u32) {
        match self.given.last() {
            Some((last, other)) if *last == annotator => {
                if *other != label {
                    self.given.pop();
                    self.several = Some(annotator);
                }
            }
            _ if self.several == Some(annotator) => {}
            _ => self.given.push((annotator, label)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.given.len()
    }

    /// Each label with the number of annotators who gave it; sorts the answers by label.
    pub(super) fn counts(&mut self) -> impl Iterator<Item = (u32, f64)> {
        self.given.sort_unstable_by_key(|(_, label)| *label);
        let equal = self.given.chunk_by(|x, y| x.1 == y.1);
        equal.map(|equal| (equal[0].1, equal.len() as f64))
    }

    /// The answers; of more than `most` a share at equal distances, from the start that `from` gives. Ascending.
    pub(super) fn sampled(&mut self, most: usize, from: usize) -> &[(u32, u32)] {
        let stride = self.given.len().div_ceil(most).max(1);
        if stride > 1 {
            let mut n = 0..;
            self.given.retain(|_| n.next().unwrap_or(0) % stride == from % stride);
        }
        // Singleton annotators have the last columns, whatever their number.
        self.given.sort_unstable();
        &self.given
    }
}
