//! The used rows of one question, by provisional numbers.

use rayon::prelude::*;

use super::AnnotationRows;
use super::annotations::ITEMS_PER_BLOCK;
use super::classes::LabelAxis;
use super::ids::NULL;
use super::rejects::{Reason, Rejects};

/// Used rows, by provisional numbers; the optional columns are as long as the others or empty.
#[derive(Default)]
pub(super) struct AnnotationColumns {
    pub(super) instance: Vec<u32>,
    pub(super) annotator: Vec<u32>,
    pub(super) label: Vec<u32>,
    pub(super) weight: Vec<f64>,
    pub(super) annotated_at: Vec<i128>,
}

impl AnnotationColumns {
    /// Rejects the rows whose label is unknown; `used` says which labels have rows.
    pub(super) fn reject_unknown(
        &mut self,
        classes: &LabelAxis,
        used: &[bool],
        rejects: &mut Rejects,
    ) {
        let unknown = |label: u32| classes.rank[label as usize] == NULL;
        if (0..).zip(used).any(|(label, used)| *used && unknown(label)) {
            let mut rows = vec![0; classes.rank.len()];
            self.label.iter().for_each(|label| rows[*label as usize] += 1);
            // Once for each label: the text of one that millions of rows have may be large.
            for (label, rows) in
                (0..).zip(rows).filter(|(label, rows)| *rows > 0 && unknown(*label))
            {
                rejects.add(Reason::UnknownClass, rows, classes.text(label));
            }
            let keep: Vec<bool> = self.label.iter().map(|l| !unknown(*l)).collect();
            self.retain(&keep);
        }
    }

    /// Keeps the rows with the newest time of each (instance, annotator); returns the number of removed rows.
    pub(super) fn keep_newest(&mut self) -> u64 {
        let n = self.instance.len();
        let mut order: Vec<usize> = (0..n).collect();
        let pair = |row: usize| (self.instance[row], self.annotator[row]);
        order.sort_unstable_by_key(|row| (pair(*row), self.annotated_at[*row]));
        let mut keep = vec![false; n];
        let mut newest = None;
        for row in order.into_iter().rev() {
            let (this_pair, at) = (pair(row), self.annotated_at[row]);
            match newest {
                Some((newest_pair, newest_at)) if newest_pair == this_pair => {
                    keep[row] = at == newest_at;
                }
                _ => {
                    keep[row] = true;
                    newest = Some((this_pair, at));
                }
            }
        }
        let gone = keep.iter().filter(|k| !**k).count() as u64;
        self.retain(&keep);
        gone
    }

    fn retain(&mut self, keep: &[bool]) {
        fn filter<T>(values: &mut Vec<T>, keep: &[bool]) {
            let mut row = 0;
            values.retain(|_| {
                row += 1;
                keep[row - 1]
            });
        }
        filter(&mut self.instance, keep);
        filter(&mut self.annotator, keep);
        filter(&mut self.label, keep);
        filter(&mut self.weight, keep);
        filter(&mut self.annotated_at, keep);
    }

    /// The rows by final numbers.
    pub(super) fn renumbered(
        mut self,
        instance: &[u32],
        annotator: &[u32],
        label: &[u32],
    ) -> AnnotationRows {
        let map = |numbers: &mut Vec<u32>, rank: &[u32]| {
            numbers
                .par_iter_mut()
                .with_min_len(ITEMS_PER_BLOCK)
                .for_each(|n| *n = rank[*n as usize]);
        };
        map(&mut self.instance, instance);
        map(&mut self.annotator, annotator);
        map(&mut self.label, label);
        let Self { instance, annotator, label, weight, .. } = self;
        AnnotationRows { instance, annotator, label, weight }
    }
}
