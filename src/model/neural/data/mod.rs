//! Training data: annotations by instance, cut into batches whose features are read while the network computes.

mod annotations_by_instance;
pub(crate) mod batch;
pub(crate) mod batching;
mod example;
pub(crate) mod inputs;
mod pairs;
pub(crate) mod read_ahead;
pub(crate) mod sizes;

use std::sync::mpsc::sync_channel;
use std::thread;

use rand::seq::SliceRandom;

use super::net::input::scaler::Scaler;
use crate::error::Result;
use crate::frame::{Annotations, Evidence, JointQuestion, Matrix};
use crate::job_context::JobContext;
use crate::model::posterior::Posterior;
use annotations_by_instance::{AnnotationsByInstance, WeightedLabel, is_same_annotator};
use batch::{Batch, BatchAnnotation};
use batching::{Batching, InstanceSubset};
use example::Example;
use inputs::{Inputs, LearnerInput, Reader};
use read_ahead::{READ_AHEAD, ReadAhead, ReadBatch};

/// Everything that a model is trained on.
pub struct TrainingData<'a> {
    /// The features.
    pub matrix: &'a Matrix,
    annotators: Option<(&'a Matrix, &'a [Option<u32>])>,
    row_of: &'a [Option<u32>],
    /// The training annotations.
    pub annotations: &'a Annotations,
    by_instance: AnnotationsByInstance,
    held_out: AnnotationsByInstance,
    examples: Vec<Example>,
    /// The sum of the weights of each annotator's training annotations.
    weights: Vec<f64>,
}

/// The data and settings of one epoch.
#[derive(Clone, Copy)]
pub struct Epoch<'a> {
    /// The name of the epoch's random streams.
    pub name: &'a str,
    /// The instances that are trained on.
    pub instances: InstanceSubset,
    /// The targets of the classifier, `[instance, class]`, where the model has them.
    pub targets: Option<&'a Posterior>,
    /// The split of these instances into batches.
    pub batching: Batching,
    /// The reader of each learner's input; `None` for a learner whose outputs are frozen.
    pub readers: &'a [Option<Reader>],
}

impl<'a> TrainingData<'a> {
    /// Prepares the training data, or `None` without features. With targets, only instances with evidence are trained on.
    #[must_use]
    pub fn new(
        evidence: Evidence<'a>,
        held_out: Option<&Annotations>,
        has_targets: bool,
        batching: Batching,
    ) -> Option<Self> {
        let with_features = evidence.with_features?;
        let a = evidence.annotations;
        let by_instance = AnnotationsByInstance::new(a);
        let mut weights = vec![0.0; a.dims().annotators];
        let mut examples = Vec::new();
        for i in (0..a.dims().instances).filter(|i| with_features.row_of_instance[*i].is_some()) {
            // Without evidence the target would be uniform, which no annotation supports.
            if has_targets && !a.has_evidence(i) {
                continue;
            }
            let own = by_instance.labels(i);
            own.iter().for_each(|(annotator, _, weight)| weights[*annotator as usize] += weight);
            if batching.by_annotation && !own.is_empty() {
                let (mut first, all) = (0, own.chunk_by(is_same_annotator).count() as u32);
                // The rows of one annotator are adjacent: a soft annotation is one example.
                for rows in own.chunk_by(is_same_annotator) {
                    let (instance, len) = (i as u32, rows.len() as u32);
                    examples.push(Example::Annotation { instance, first, len, all });
                    first += len;
                }
            } else if !own.is_empty() || a.trusted_class(i).is_some() {
                examples.push(Example::Instance(i as u32));
            }
        }
        Some(Self {
            matrix: with_features.matrix(),
            annotators: with_features.annotator_matrix(),
            row_of: with_features.row_of_instance.as_slice(),
            annotations: a,
            by_instance,
            held_out: held_out.map(AnnotationsByInstance::new).unwrap_or_default(),
            examples,
            weights,
        })
    }

    /// The data of instances that are trained on by their targets alone; `none` has no annotations of them.
    #[must_use]
    pub fn without_annotations(
        matrix: &'a Matrix,
        row_of: &'a [Option<u32>],
        none: &'a Annotations,
    ) -> Self {
        Self {
            matrix,
            annotators: None,
            row_of,
            annotations: none,
            by_instance: AnnotationsByInstance::default(),
            held_out: AnnotationsByInstance::default(),
            examples: (0..row_of.len() as u32).map(Example::Instance).collect(),
            weights: Vec::new(),
        }
    }

    /// The data that learners read from.
    #[must_use]
    pub fn inputs(&self) -> Inputs<'_> {
        Inputs {
            annotators: self.annotators,
            annotations: Some(&self.by_instance),
            labels: self.annotations.dims().labels,
            ..Inputs::unseen(self.matrix)
        }
    }

    /// Whether each annotator has no training annotation of positive weight.
    #[must_use]
    pub fn unknown(&self) -> Vec<bool> {
        self.weights.iter().map(|sum| *sum == 0.0).collect()
    }

    /// Whether each row of a table of instances has no training data.
    #[must_use]
    pub fn unknown_instances(&self) -> Vec<bool> {
        let n = self.annotations.joint.as_ref().map_or(self.row_of.len(), |joint| joint.n_shared);
        let mut unknown = vec![true; n];
        self.examples
            .iter()
            .for_each(|example| unknown[self.table_row(example.instance())] = false);
        unknown
    }

    /// Whether there is nothing to train on.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.examples.is_empty()
    }

    /// The number of rows in a batch of an epoch over all training data.
    pub(crate) fn batch_rows(&self, batching: Batching) -> usize {
        batching.size(self.examples.len()).min(self.examples.len())
    }

    /// The feature rows of the training data, ascending.
    #[must_use]
    pub fn rows(&self) -> Vec<u32> {
        let row = |i: &u32| self.row_of[*i as usize];
        let mut rows: Vec<u32> = self.trained_instances().iter().filter_map(row).collect();
        rows.sort_unstable();
        rows
    }

    /// The instances of the training data, ascending.
    #[must_use]
    pub fn trained_instances(&self) -> Vec<u32> {
        let mut instances: Vec<u32> =
            self.examples.iter().map(|example| example.instance() as u32).collect();
        instances.sort_unstable();
        instances.dedup();
        instances
    }

    /// The ids of all rows that an epoch may read of a learner's input, ascending.
    pub(crate) fn ids(&self, input: LearnerInput) -> Vec<u32> {
        match input {
            LearnerInput::Features => self.rows(),
            LearnerInput::Annotations => self.trained_instances(),
            LearnerInput::Annotators => (0..self.annotations.dims().annotators as u32).collect(),
            // Its outputs change with the table, whatever the phase trains.
            LearnerInput::Embedding(_) => Vec::new(),
        }
    }

    /// Fits the scaler of a learner's input to the training data.
    pub(crate) fn fit_scaler(&self, scaler: &mut Scaler, input: LearnerInput) {
        match (input, self.annotators) {
            (LearnerInput::Features, _) => scaler.fit(self.matrix, self.rows().into_iter()),
            (LearnerInput::Annotators, Some((matrix, rows))) => {
                scaler.fit(matrix, rows.iter().flatten().copied());
            }
            (LearnerInput::Annotators, None)
            | (LearnerInput::Annotations | LearnerInput::Embedding(_), _) => {}
        }
    }

    /// The feature row of an instance, where it has features.
    #[must_use]
    pub fn row(&self, instance: usize) -> Option<usize> {
        self.row_of[instance].map(|row| row as usize)
    }

    /// The row of an instance in tables of instances.
    fn table_row(&self, instance: usize) -> usize {
        self.annotations.joint.as_ref().map_or(instance, |joint| joint.shared[instance] as usize)
    }

    /// The instances that have features, ascending.
    #[must_use]
    pub fn instances(&self) -> Vec<u32> {
        (0..self.row_of.len() as u32).filter(|i| self.row_of[*i as usize].is_some()).collect()
    }

    /// The trusted class of each instance that has features, as (instance, class), ascending.
    #[must_use]
    pub fn trusted(&self) -> Vec<(u32, u32)> {
        let trusted = |i: u32| Some((i, self.annotations.trusted_class(i as usize)?));
        self.instances().into_iter().filter_map(trusted).collect()
    }

    /// The instances without a trusted class, or all, ascending: those with features, and those without.
    #[must_use]
    pub fn by_features(&self, with_trusted: bool) -> (Vec<u32>, Vec<u32>) {
        (0..self.row_of.len() as u32)
            .filter(|i| with_trusted || self.annotations.trusted_class(*i as usize).is_none())
            .partition(|i| self.row_of[*i as usize].is_some())
    }

    /// A batch of these instances with their training annotations.
    #[must_use]
    pub fn observed(&self, instances: &[u32], targets: Option<&Posterior>) -> Batch {
        let parts = instances.iter().map(|i| (*i, self.by_instance.labels(*i as usize), 1));
        self.gather(parts, targets, 1)
    }

    /// A batch of these instances without their annotations.
    #[must_use]
    pub fn unannotated(&self, instances: &[u32], targets: Option<&Posterior>) -> Batch {
        self.gather(instances.iter().map(|i| (*i, &[][..], 1)), targets, 1)
    }

    /// The instances that have features and held-out annotations, ascending.
    #[must_use]
    pub fn held_out_instances(&self) -> Vec<u32> {
        let mut instances = self.instances();
        instances.retain(|i| !self.held_out.labels(*i as usize).is_empty());
        instances
    }

    /// A batch of these instances with their held-out annotations.
    #[must_use]
    pub fn held_out(&self, instances: &[u32], targets: Option<&Posterior>) -> Batch {
        let parts = instances.iter().map(|i| (*i, self.held_out.labels(*i as usize), 1));
        self.gather(parts, targets, 1)
    }

    /// A batch of feature rows without annotations, for one of several questions.
    #[must_use]
    pub fn unseen_of(question: Option<JointQuestion>, rows: Vec<u32>) -> Batch {
        let questions = question.map_or_else(Vec::new, |question| vec![question; rows.len()]);
        Batch { questions, ..Self::unseen(rows) }
    }

    /// A batch of feature rows without annotations.
    #[must_use]
    pub fn unseen(rows: Vec<u32>) -> Batch {
        Batch {
            offsets: vec![0; rows.len() + 1],
            trusted: vec![None; rows.len()],
            trusted_share: vec![1.0; rows.len()],
            instances: vec![u32::MAX; rows.len()],
            table_rows: vec![u32::MAX; rows.len()],
            rows,
            ..Batch::default()
        }
    }

    fn batch(&self, examples: &[Example], targets: Option<&Posterior>, batches: usize) -> Batch {
        let parts = examples.iter().map(|example| match example {
            Example::Instance(i) => (*i, self.by_instance.labels(*i as usize), 1),
            Example::Annotation { instance, first, len, all } => {
                let own = self.by_instance.labels(*instance as usize);
                (*instance, &own[*first as usize..][..*len as usize], *all as usize)
            }
        });
        self.gather(parts, targets, batches)
    }

    /// A batch of (instance, annotations, examples of the instance in an epoch), in an epoch of `batches` batches.
    fn gather<'b>(
        &self,
        parts: impl Iterator<Item = (u32, &'b [WeightedLabel], usize)>,
        targets: Option<&Posterior>,
        batches: usize,
    ) -> Batch {
        let mut batch = Batch { offsets: vec![0], ..Batch::default() };
        for (i, annotations, examples) in parts {
            batch.rows.push(self.row_of[i as usize].unwrap_or_default());
            batch.instances.push(i);
            batch.table_rows.push(self.table_row(i as usize) as u32);
            let joint = self.annotations.joint.as_ref();
            batch.questions.extend(joint.map(|joint| joint.question_of(i as usize)));
            batch.trusted.push(self.annotations.trusted_class(i as usize));
            batch.trusted_share.push(1.0 / examples as f64);
            if let Some(targets) = targets {
                batch.targets.extend_from_slice(targets.row(i as usize));
            }
            batch.annotations.extend(annotations.iter().map(|(annotator, label, weight)| {
                BatchAnnotation { annotator: *annotator, label: *label, weight: *weight }
            }));
            batch.offsets.push(batch.annotations.len());
        }
        batch.distinct_table_rows.clone_from(&batch.table_rows);
        batch.distinct_table_rows.sort_unstable();
        batch.distinct_table_rows.dedup();
        batch.annotators = batch.annotations.iter().map(|a| a.annotator).collect();
        batch.annotators.sort_unstable();
        batch.annotators.dedup();
        let mut here = vec![0.0; batch.annotators.len()];
        for annotation in &mut batch.annotations {
            let index = batch.annotators.partition_point(|r| *r < annotation.annotator);
            here[index] += annotation.weight;
            annotation.annotator = index as u32;
        }
        let share = |(here, r): (f64, &u32)| {
            let all = self.weights[*r as usize];
            if all > 0.0 { here * batches as f64 / all } else { 0.0 }
        };
        batch.share = here.into_iter().zip(&batch.annotators).map(share).collect();
        batch
    }

    /// Runs one epoch: visits every example of `instances` once, in an order shuffled by the random stream of `name`, and
    /// calls `step` for each batch, with those that are still to come. Another thread reads and scales these meanwhile.
    ///
    /// # Errors
    /// When `step` fails.
    pub fn epoch(
        &self,
        Epoch { name, instances, targets, batching, readers }: Epoch<'_>,
        job: &JobContext,
        mut step: impl FnMut(ReadBatch, &mut ReadAhead) -> Result<()>,
    ) -> Result<()> {
        let mut examples = self.examples.clone();
        examples
            .retain(|example| instances.has(self.annotations.trusted_class(example.instance())));
        examples.shuffle(&mut job.rng(&format!("order of {name}")));
        let (size, batches) = (batching.size(examples.len()), batching.batches(examples.len()));
        thread::scope(|scope| {
            let (sender, receiver) = sync_channel(READ_AHEAD);
            let examples = &examples;
            scope.spawn(move || {
                for (index, examples) in examples.chunks(size).take(batches).enumerate() {
                    let batch = self.batch(examples, targets, batches);
                    let stream = format!("augmentation of {name}, batch {index}");
                    let read = |reader: &Reader| reader.read(self.inputs(), &batch, &stream);
                    let inputs = readers.iter().map(|r| r.as_ref().map(read).unwrap_or_default());
                    let inputs = inputs.collect();
                    if sender.send(ReadBatch { index, batch, inputs }).is_err() {
                        break;
                    }
                }
            });
            let mut ahead = ReadAhead::new(receiver);
            while let Some(batch) = ahead.next() {
                step(batch, &mut ahead)?;
            }
            Ok(())
        })
    }
}
