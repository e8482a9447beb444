//! Builds the sparse views of [`Annotations`] from rows in any order.

use rayon::prelude::*;

use super::annotations::{Annotations, BLOCK, Dims};
use super::offsets::{Places, count, number, owners, prefix_sum};
use super::said::{Duplicates, Repeated, Said};

/// Annotations in any order, a column of numbers each.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// Of which instance.
    pub instance: Vec<u32>,
    /// By whom.
    pub annotator: Vec<u32>,
    /// What: a label's number.
    pub label: Vec<u32>,
    /// How much each counts; empty where all count 1.
    pub weight: Vec<f64>,
}

impl Annotations {
    /// Builds both views from rows in any order.
    ///
    /// # Errors
    /// The repeated pairs, where the policy is [`Duplicates::Error`].
    pub fn build(dims: Dims, rows: Rows, policy: Duplicates) -> Result<Self, Repeated> {
        let (sorted, (rows_of_annotator, rows_of_instance)) = rayon::join(
            || distinct_columns(dims, &rows),
            || (count(&rows.annotator, dims.annotators), count(&rows.instance, dims.instances)),
        );
        let Seating { order, seats, by_seat, labels, first_lone } =
            Seating::new(sorted, &rows_of_annotator);
        let mut said = rows.annotator;
        said.par_iter_mut().zip(&rows.label).with_min_len(BLOCK).for_each(|(said, label)| {
            let seat = seats[*said as usize] as usize;
            let own = by_seat[seat]..by_seat[seat + 1];
            *said = number(own.start + labels[own].partition_point(|l| l < label));
        });
        let offsets = prefix_sum(&rows_of_instance);
        let mut said = Said::scatter(offsets, &rows.instance, &said, &rows.weight);
        said.settle(&owners(&order, &by_seat), policy)?;
        let Said { offsets: by_instance, columns, weights } = said;
        let weights = weights.filter(|all| all.iter().any(|w| (w - 1.0).abs() > 0.0));
        let by_column = prefix_sum(&count(&columns, labels.len()));
        let mut built = Self {
            dims,
            by_instance,
            instances: vec![0; columns.len()],
            column_weights: weights.as_ref().map(|w| vec![0.0; w.len()]),
            columns,
            first_lone: if weights.is_some() { labels.len() } else { first_lone },
            weights,
            seats,
            by_seat,
            labels,
            by_column,
            rows_of_instance,
            rows_of_annotator,
            trusted: None,
        };
        built.turn();
        Ok(built)
    }

    /// Fills the view by column from the view by instance.
    fn turn(&mut self) {
        let mut places = Places(std::mem::take(&mut self.by_column));
        for i in 0..self.dims.instances {
            for at in self.by_instance[i]..self.by_instance[i + 1] {
                let place = places.next(self.columns[at]);
                self.instances[place] = number(i);
                if let (Some(out), Some(weights)) = (&mut self.column_weights, &self.weights) {
                    out[place] = weights[at];
                }
            }
        }
        self.by_column = places.offsets();
    }
}

/// The distinct labels of each annotator, ascending: (offsets by annotator, labels).
fn distinct_columns(dims: Dims, rows: &Rows) -> (Vec<usize>, Vec<u32>) {
    let mut counts = vec![0_u32; dims.annotators];
    let n_cells = dims.annotators.saturating_mul(dims.labels);
    let mut labels = Vec::with_capacity(n_cells.min(rows.label.len()));
    let mut add = |annotator: usize, label: u32| {
        counts[annotator] += 1;
        labels.push(label);
    };
    let pairs = rows.annotator.iter().zip(&rows.label);
    // A flag a cell is fastest, as long as the cells are not many more than the annotations.
    if n_cells <= 8 * rows.label.len() + BLOCK {
        let mut occurs = vec![false; n_cells];
        pairs.for_each(|(r, l)| occurs[*r as usize * dims.labels + *l as usize] = true);
        for (cell, _) in occurs.iter().enumerate().filter(|(_, occurs)| **occurs) {
            add(cell / dims.labels, number(cell % dims.labels));
        }
    } else {
        let mut cells: Vec<(u32, u32)> = pairs.map(|(r, l)| (*r, *l)).collect();
        cells.par_sort_unstable();
        cells.dedup();
        cells.iter().for_each(|(r, l)| add(*r as usize, *l));
    }
    (prefix_sum(&counts), labels)
}

/// Who sits where, and the columns in the order of the seats; see [`Annotations`].
struct Seating {
    /// The annotator in each seat.
    order: Vec<u32>,
    /// The seat of each annotator.
    seats: Vec<u32>,
    /// Where the columns of each seat begin, and one past the last.
    by_seat: Vec<usize>,
    labels: Vec<u32>,
    first_lone: usize,
}

impl Seating {
    /// From the columns in the order of the annotators, (offsets by annotator, labels).
    fn new((offsets, sorted): (Vec<usize>, Vec<u32>), rows_of_annotator: &[u32]) -> Self {
        let all = 0..rows_of_annotator.len();
        let (mut order, lone): (Vec<u32>, Vec<u32>) =
            all.map(number).partition(|r| rows_of_annotator[*r as usize] > 1);
        let many = order.len();
        order.extend(lone);
        let (mut seats, mut by_seat) = (vec![0; order.len()], Vec::with_capacity(offsets.len()));
        let mut labels = Vec::with_capacity(sorted.len());
        for (seat, r) in order.iter().enumerate() {
            let r = *r as usize;
            seats[r] = number(seat);
            by_seat.push(labels.len());
            labels.extend_from_slice(&sorted[offsets[r]..offsets[r + 1]]);
        }
        by_seat.push(labels.len());
        let first_lone = by_seat[many];
        Self { order, seats, by_seat, labels, first_lone }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIMS: Dims = Dims { instances: 3, annotators: 2, classes: 2, labels: 3 };

    fn build(rows: &[(u32, u32, u32, f64)], policy: Duplicates) -> Result<Annotations, Repeated> {
        let mut columns = Rows::default();
        for (instance, annotator, label, weight) in rows {
            columns.instance.push(*instance);
            columns.annotator.push(*annotator);
            columns.label.push(*label);
            columns.weight.push(*weight);
        }
        Annotations::build(DIMS, columns, policy)
    }

    #[test]
    fn both_views_hold_the_same_annotations() {
        let a =
            build(&[(2, 1, 0, 1.0), (0, 0, 1, 1.0), (0, 1, 0, 1.0)], Duplicates::Share).unwrap();
        assert_eq!(a.said_of(0), [0, 1]);
        assert_eq!(a.said_of(1), [0_u32; 0]);
        assert_eq!((a.label_of(0), a.label_of(1)), (0, 1));
        assert_eq!(a.instances_of(0), [0, 2]);
        assert_eq!((a.columns_of(0), a.columns_of(1)), (1..2, 0..1));
        assert!(a.weights_of(0).is_none());
    }

    #[test]
    fn who_came_once_sits_behind_all_others() {
        let once = |weight| {
            let rows = [(0, 0, 1, weight), (0, 1, 0, 1.0), (1, 1, 1, 1.0)];
            build(&rows, Duplicates::Share).unwrap()
        };
        let a = once(1.0);
        assert_eq!((a.columns_of(0), a.columns_of(1), a.first_lone()), (2..3, 0..2, 2));
        assert_eq!(
            (a.labels_of(0), a.said_of(0), a.instances_of(2)),
            (&[1][..], &[0, 2][..], &[0][..])
        );
        assert_eq!(once(0.5).first_lone(), 3, "half an annotation is not one");
    }

    #[test]
    fn many_more_cells_than_annotations_give_the_same_columns() {
        let wide = Dims { annotators: 90_000, labels: 90, ..DIMS };
        let rows = || Rows {
            instance: vec![0, 1, 2],
            annotator: vec![89_999, 7, 89_999],
            label: vec![80, 3, 2],
            weight: Vec::new(),
        };
        let a = Annotations::build(wide, rows(), Duplicates::Share).unwrap();
        assert_eq!((a.columns_of(7), a.labels_of(89_999)), (2..3, &[2, 80][..]));
        assert_eq!(a.said_of(0), [1]);
    }

    #[test]
    fn equal_answers_share_one_say() {
        let rows = [(0, 0, 1, 1.0), (0, 0, 1, 1.0), (0, 0, 1, 1.0)];
        let a = build(&rows, Duplicates::Share).unwrap();
        assert_eq!((a.len(), a.weights_of(0), a.rows_of_instance(0)), (1, None, 3));
        assert_eq!(build(&rows, Duplicates::Keep).unwrap().len(), 3);
        assert_eq!(build(&rows, Duplicates::Error).unwrap_err(), Repeated(vec![(0, 0), (0, 0)]));
    }

    #[test]
    fn different_answers_share_and_soft_ones_stay_whole() {
        let a = build(&[(0, 0, 0, 1.0), (0, 0, 1, 1.0)], Duplicates::Share).unwrap();
        assert_eq!(a.weights_of(0), Some(&[0.5, 0.5][..]));
        let soft = build(&[(1, 0, 0, 0.75), (1, 0, 1, 0.25)], Duplicates::Share).unwrap();
        assert_eq!(soft.weights_of(1), Some(&[0.75, 0.25][..]));
        let expert = build(&[(1, 0, 0, 2.0), (1, 0, 0, 2.0)], Duplicates::Share).unwrap();
        assert_eq!(expert.weights_of(1), Some(&[2.0][..]));
    }

    #[test]
    fn a_label_that_is_no_class_is_no_evidence() {
        let a = build(&[(0, 0, 2, 1.0), (1, 0, 1, 1.0)], Duplicates::Share).unwrap();
        assert_eq!([a.has_evidence(0), a.has_evidence(1), a.has_evidence(2)], [false, true, false]);
    }
}
