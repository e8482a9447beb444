//! Batches: flat lists of who said what of a few rows, and their features, made ready while the network computes.

use std::sync::mpsc::sync_channel;
use std::thread;

use rand::seq::SliceRandom;

use super::scaler::Scaler;
use crate::error::Result;
use crate::frame::{Annotations, Evidence, Matrix, Places, count, prefix_sum};
use crate::model::fitted::Posterior;
use crate::run::Run;

/// One annotation of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Said {
    /// Whose: a place in [`Batch::annotators`].
    pub who: u32,
    /// What.
    pub label: u32,
    /// How much it counts.
    pub weight: f64,
}

/// Some rows and what was said of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// The feature row of each.
    pub rows: Vec<u32>,
    /// The instance of each.
    pub instances: Vec<u32>,
    /// Where in `said` the annotations of each begin, and one past the last.
    pub offsets: Vec<usize>,
    /// Annotations, row after row.
    pub said: Vec<Said>,
    /// The annotators that occur, ascending.
    pub annotators: Vec<u32>,
    /// How much of each annotator's penalty belongs here: with every batch of an epoch, one a batch on average.
    pub share: Vec<f64>,
    /// What the classifier should say, `[row, class]`; empty for models that learn from annotations.
    pub targets: Vec<f64>,
    /// The trusted class of each row.
    pub trusted: Vec<Option<u32>>,
}

impl Batch {
    /// Rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// What was said of row `b`.
    #[must_use]
    pub fn said_of(&self, b: usize) -> &[Said] {
        &self.said[self.offsets[b]..self.offsets[b + 1]]
    }

    /// What each annotator said.
    pub(super) fn turns(&self) -> Turns {
        let who: Vec<u32> = self.said.iter().map(|said| said.who).collect();
        let offsets = prefix_sum(&count(&who, self.annotators.len()));
        let mut places = Places(offsets);
        let mut all = vec![Turn { row: 0, said: 0 }; who.len()];
        for b in 0..self.len() {
            for said in self.offsets[b]..self.offsets[b + 1] {
                all[places.next(who[said])] = Turn { row: b as u32, said: said as u32 };
            }
        }
        Turns { offsets: places.offsets(), all }
    }
}

/// One annotation, seen from its annotator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn {
    /// Of which row.
    pub row: u32,
    /// Its place in [`Batch::said`].
    pub said: u32,
}

/// The annotations of a batch, annotator after annotator, each annotator's in the order of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turns {
    /// Where in `all` those of each annotator begin, and one past the last.
    pub offsets: Vec<usize>,
    /// All of them.
    pub all: Vec<Turn>,
}

impl Turns {
    /// Those of one annotator: a place in [`Batch::annotators`].
    pub(super) fn of(&self, who: usize) -> &[Turn] {
        &self.all[self.offsets[who]..self.offsets[who + 1]]
    }
}

/// (annotator, label, weight)
type Annotation = (u32, u32, f64);

/// Annotations by instance.
#[derive(Default)]
struct Sayings {
    offsets: Vec<usize>,
    all: Vec<Annotation>,
}

impl Sayings {
    fn new(a: &Annotations) -> Self {
        let annotators = a.annotators_of_columns();
        let mut sayings = Self { offsets: vec![0], all: Vec::with_capacity(a.len()) };
        for i in 0..a.dims().instances {
            let weights = a.weights_of(i);
            sayings.all.extend(a.said_of(i).iter().enumerate().map(|(n, column)| {
                (annotators[*column as usize], a.label_of(*column), weights.map_or(1.0, |w| w[n]))
            }));
            sayings.offsets.push(sayings.all.len());
        }
        sayings
    }

    fn of(&self, i: usize) -> &[Annotation] {
        self.offsets.get(i..i + 2).map_or(&[], |bounds| &self.all[bounds[0]..bounds[1]])
    }
}

/// What a batch is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// An instance with all its annotations.
    Instance(u32),
    /// One annotation: the instance, and which of its annotations.
    Annotation(u32, u32),
}

/// Everything that is learned from, ready to be cut into batches.
pub struct Data<'a> {
    /// The features.
    pub matrix: &'a Matrix,
    row_of: &'a [Option<u32>],
    annotations: &'a Annotations,
    said: Sayings,
    held_out: Sayings,
    targets: Option<Posterior>,
    units: Vec<Unit>,
    /// Annotations in the units, by annotator.
    counts: Vec<f64>,
}

/// Rows in a batch, unless the user chooses or the data are small.
const USUAL_BATCH: usize = 128;

/// Batches in an epoch, where the user does not choose their size.
const LEAST_BATCHES: usize = 8;

/// How the data are cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cut {
    /// Rows in a batch; `None` for what suits the data.
    pub batch_size: Option<usize>,
    /// Whether a batch is of annotations instead of instances.
    pub by_annotation: bool,
    /// Whether an incomplete last batch is left out.
    pub whole_only: bool,
}

impl<'a> Data<'a> {
    /// Prepares what there is to learn from, or `None` without features.
    #[must_use]
    pub fn new(
        evidence: Evidence<'a>,
        held_out: Option<&Annotations>,
        targets: Option<Posterior>,
        cut: Cut,
    ) -> Option<Self> {
        let described = evidence.described?;
        let a = evidence.annotations;
        let said = Sayings::new(a);
        let mut counts = vec![0.0; a.dims().annotators];
        let mut units = Vec::new();
        for i in (0..a.dims().instances).filter(|i| described.row_of_instance[*i].is_some()) {
            // A target that nothing speaks for would be invented.
            if targets.is_some() && !a.has_evidence(i) {
                continue;
            }
            let n = said.of(i).len() as u32;
            said.of(i).iter().for_each(|(annotator, ..)| counts[*annotator as usize] += 1.0);
            if cut.by_annotation && n > 0 {
                units.extend((0..n).map(|n| Unit::Annotation(i as u32, n)));
            } else if n > 0 || a.trusted_class(i).is_some() {
                units.push(Unit::Instance(i as u32));
            }
        }
        Some(Self {
            matrix: described.matrix(),
            row_of: described.row_of_instance.as_slice(),
            annotations: a,
            said,
            held_out: held_out.map(Sayings::new).unwrap_or_default(),
            targets,
            units,
            counts,
        })
    }

    /// What the classifier should say of each instance, where that is given.
    #[must_use]
    pub fn targets(&self) -> Option<&Posterior> {
        self.targets.as_ref()
    }

    /// Whether nothing was to be learned of each annotator.
    #[must_use]
    pub fn unknown(&self) -> Vec<bool> {
        self.counts.iter().map(|n| *n == 0.0).collect()
    }

    /// Whether there is nothing to learn from.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// The feature rows that are learned from, ascending.
    #[must_use]
    pub fn rows(&self) -> Vec<u32> {
        let row = |unit: &Unit| match unit {
            Unit::Instance(i) | Unit::Annotation(i, _) => self.row_of[*i as usize],
        };
        let mut rows: Vec<u32> = self.units.iter().filter_map(row).collect();
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    /// Instances that have features, in their order.
    #[must_use]
    pub fn instances(&self) -> Vec<u32> {
        let known = self.row_of.iter().enumerate().filter(|(_, row)| row.is_some());
        known.map(|(i, _)| i as u32).collect()
    }

    /// Some instances with everything that was said of them.
    #[must_use]
    pub fn observed(&self, instances: &[u32]) -> Batch {
        self.gather(instances.iter().map(|i| (*i, self.said.of(*i as usize))), 1)
    }

    /// Some instances with what was held out of them.
    #[must_use]
    pub fn held_out(&self, instances: &[u32]) -> Batch {
        self.gather(instances.iter().map(|i| (*i, self.held_out.of(*i as usize))), 1)
    }

    /// Feature rows of which nothing is known.
    #[must_use]
    pub fn unseen(rows: std::ops::Range<usize>) -> Batch {
        let rows: Vec<u32> = rows.map(|row| row as u32).collect();
        Batch {
            offsets: vec![0; rows.len() + 1],
            trusted: vec![None; rows.len()],
            instances: vec![u32::MAX; rows.len()],
            rows,
            ..Batch::default()
        }
    }

    fn batch(&self, units: &[Unit], batches: usize) -> Batch {
        let parts = units.iter().map(|unit| match unit {
            Unit::Instance(i) => (*i, self.said.of(*i as usize)),
            Unit::Annotation(i, n) => (*i, &self.said.of(*i as usize)[*n as usize..=*n as usize]),
        });
        self.gather(parts, batches)
    }

    fn gather<'b>(
        &self,
        parts: impl Iterator<Item = (u32, &'b [Annotation])>,
        batches: usize,
    ) -> Batch {
        let mut batch = Batch { offsets: vec![0], ..Batch::default() };
        for (i, said) in parts {
            batch.rows.push(self.row_of[i as usize].unwrap_or_default());
            batch.instances.push(i);
            batch.trusted.push(self.annotations.trusted_class(i as usize));
            if let Some(targets) = &self.targets {
                batch.targets.extend_from_slice(targets.row(i as usize));
            }
            let said = said.iter().map(|(who, label, weight)| Said {
                who: *who,
                label: *label,
                weight: *weight,
            });
            batch.said.extend(said);
            batch.offsets.push(batch.said.len());
        }
        batch.annotators = batch.said.iter().map(|s| s.who).collect();
        batch.annotators.sort_unstable();
        batch.annotators.dedup();
        let mut here = vec![0.0; batch.annotators.len()];
        for said in &mut batch.said {
            let place = batch.annotators.partition_point(|r| *r < said.who);
            here[place] += 1.0;
            said.who = place as u32;
        }
        let share = |(here, r): (f64, &u32)| {
            here * batches as f64 / f64::max(self.counts[*r as usize], 1.0)
        };
        batch.share = here.into_iter().zip(&batch.annotators).map(share).collect();
        batch
    }

    /// Rows in a batch: few enough for an epoch to be some steps even where the data are small.
    fn batch_size(&self, cut: Cut) -> usize {
        let own = USUAL_BATCH.min(self.units.len().div_ceil(LEAST_BATCHES));
        cut.batch_size.unwrap_or(own).max(1)
    }

    /// How many batches an epoch has.
    #[must_use]
    pub fn batches(&self, cut: Cut) -> usize {
        let size = self.batch_size(cut);
        if cut.whole_only && self.units.len() >= size {
            self.units.len() / size
        } else {
            self.units.len().div_ceil(size)
        }
    }

    /// Goes through one epoch, named `name`: every unit once, in an order of its own, cut into batches. The next batch
    /// is read and scaled while `step` works on the last.
    ///
    /// # Errors
    /// Those of `step`.
    pub fn epoch(
        &self,
        name: &str,
        cut: Cut,
        scaler: &Scaler,
        run: &Run,
        mut step: impl FnMut(usize, Batch, Vec<f32>) -> Result<()>,
    ) -> Result<()> {
        let mut units = self.units.clone();
        units.shuffle(&mut run.rng(&format!("order of {name}")));
        let (size, batches) = (self.batch_size(cut), self.batches(cut));
        thread::scope(|scope| {
            let (sender, receiver) = sync_channel(2);
            let units = &units;
            scope.spawn(move || {
                for (n, units) in units.chunks(size).take(batches).enumerate() {
                    let batch = self.batch(units, batches);
                    let mut features = read(self.matrix, scaler, &batch.rows);
                    if scaler.augments() {
                        let mut rng = run.rng(&format!("augmentation of {name}, batch {n}"));
                        let images = features.chunks_exact_mut(self.matrix.width());
                        images.for_each(|image| scaler.augment(image, &mut rng));
                    }
                    if sender.send((n, batch, features)).is_err() {
                        break;
                    }
                }
            });
            receiver.into_iter().try_for_each(|(n, batch, features)| step(n, batch, features))
        })
    }
}

/// The scaled features of these rows.
#[must_use]
pub fn read(matrix: &Matrix, scaler: &Scaler, rows: &[u32]) -> Vec<f32> {
    let mut features = vec![0.0; rows.len() * matrix.width()];
    for (row, out) in rows.iter().zip(features.chunks_exact_mut(matrix.width().max(1))) {
        scaler.read(matrix, *row as usize, out);
    }
    features
}
