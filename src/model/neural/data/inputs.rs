//! The inputs of learners: features of instances, features of annotators, learned embeddings, and the matrix of
//! annotations, which has one row for each instance.

use crate::error::{Error, Result};
use crate::frame::Matrix;
use crate::job_context::JobContext;
use crate::model::neural::data::annotations_by_instance::AnnotationsByInstance;
use crate::model::neural::data::batch::Batch;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::net::input::input_rows::InputRows;
use crate::model::neural::net::input::scaler::Scaler;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::params::param_table::Owner;

/// The share of the run's memory that a batch of the matrix of annotations may take: one in this many bytes. The next
/// batches and the copy on the device need as much each.
const MATRIX_SHARE: usize = 8;

/// The name of the table of the embeddings that a classifier reads where instances have no features.
pub(crate) const INSTANCE_EMBEDDING: &str = "instance_embedding";

/// The data of a batch that a learner reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LearnerInput {
    /// The features of the batch's instances.
    #[default]
    Features,
    /// The rows of the batch's instances in the matrix of annotations. A row has the weight of each training annotation of
    /// its instance at `annotator * labels + label`, and zeros elsewhere; without annotations it is all zeros.
    Annotations,
    /// The features of the batch's annotators. An annotator without features has zeros, the mean of standardised
    /// features. The outputs have one row for each annotator of the batch, in the batch's order.
    Annotators,
    /// The rows of a table of parameters, as they are: the learned embeddings of the batch's annotators or instances. The
    /// gradient by this input updates the table. A batch of rows of features, of whatever instances, has the mean of all
    /// rows: it is of instances that nobody has annotated.
    Embedding(EmbeddingInput),
}

/// A table of parameters that a learner reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingInput {
    /// The name of the table.
    pub table: &'static str,
    /// The owner of its rows: annotators or instances.
    pub owner: Owner,
    /// The number of values in a row.
    pub width: usize,
}

/// The data that the learners of a model read from.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The features of instances.
    pub matrix: &'a Matrix,
    /// The features of annotators, and each annotator's row in them.
    pub annotators: Option<(&'a Matrix, &'a [Option<u32>])>,
    pub(super) annotations: Option<&'a AnnotationsByInstance>,
    /// The tables of parameters, for learners that read embeddings.
    pub(super) tables: Option<&'a AnnotatorParams>,
    /// The number of labels.
    pub labels: usize,
}

impl<'a> Inputs<'a> {
    /// Features of instances that nobody has annotated.
    #[must_use]
    pub fn unseen(matrix: &'a Matrix) -> Self {
        Self { matrix, annotators: None, annotations: None, tables: None, labels: 0 }
    }

    /// The same data with these tables of parameters.
    #[must_use]
    pub fn with_tables(self, tables: &'a AnnotatorParams) -> Self {
        Self { tables: Some(tables), ..self }
    }
}

impl LearnerInput {
    /// The shape of one row.
    ///
    /// # Errors
    /// When the matrix of annotations is too wide, or annotators have no features.
    pub(crate) fn shape(self, sizes: &Sizes) -> Result<Vec<usize>> {
        match self {
            Self::Features => Ok(sizes.features.clone()),
            Self::Annotations => {
                let Sizes { annotators, labels, .. } = sizes;
                let width = annotators.checked_mul(*labels).ok_or_else(|| {
                    Error::data("the matrix of annotations is wider than it can be")
                        .found(format!("{annotators} annotators and {labels} labels"))
                })?;
                Ok(vec![width])
            }
            Self::Annotators => {
                let width = sizes.annotator_features.ok_or_else(|| {
                    Error::data("the model reads features of annotators, and there are none")
                        .at("source.annotator_features")
                        .help("set source.annotator_features, or choose another model")
                })?;
                Ok(vec![width])
            }
            Self::Embedding(embedding) => Ok(vec![embedding.width]),
        }
    }

    /// Checks that the input of a batch of this many rows fits into memory.
    ///
    /// # Errors
    /// When the rows of the matrix of annotations, which are dense, take more than [`MATRIX_SHARE`] allows.
    pub(crate) fn check_batch(self, sizes: &Sizes, rows: usize, job: &JobContext) -> Result<()> {
        let Sizes { annotators, labels, .. } = sizes;
        if self != Self::Annotations {
            return Ok(());
        }
        let width = self.shape(sizes)?.into_iter().product::<usize>();
        let bytes = width.saturating_mul(rows).saturating_mul(size_of::<f32>());
        let max = job.share_of_memory(MATRIX_SHARE, usize::MAX);
        if bytes <= max {
            return Ok(());
        }
        Err(Error::data("a batch of the matrix of annotations is too large for the memory limit")
            .at("model.train.batch_size")
            .found(format!(
                "{rows} rows of {annotators} annotators x {labels} labels are {bytes} bytes, where {max} are allowed"
            ))
            .help("choose a smaller batch_size, raise engine.memory_limit, or choose a model that does not read the matrix"))
    }

    /// The ids of the rows that a batch reads: feature rows, instances or annotators.
    pub(crate) fn ids(self, batch: &Batch) -> &[u32] {
        match self {
            Self::Features => &batch.rows,
            Self::Annotations => &batch.instances,
            Self::Annotators => &batch.annotators,
            Self::Embedding(embedding) => match embedding.owner {
                // One output for each row of the batch.
                Owner::Instance => &batch.table_rows,
                owner => owner.rows(batch),
            },
        }
    }

    /// Reads and scales the rows with these ids, one after the other; `width` is the length of a row.
    pub(crate) fn read(
        self,
        inputs: Inputs<'_>,
        scaler: &Scaler,
        width: usize,
        ids: &[u32],
    ) -> Vec<f32> {
        if self == Self::Features {
            return scaler.read_all(inputs.matrix, ids);
        }
        if let (Self::Embedding(embedding), Some(tables)) = (self, inputs.tables) {
            return embedding.rows(tables, ids);
        }
        let mut numbers = vec![0.0; ids.len() * width];
        for (id, row) in ids.iter().zip(numbers.chunks_exact_mut(width.max(1))) {
            let id = *id as usize;
            if self == Self::Annotations {
                let of_instance = inputs.annotations.map_or(&[][..], |all| all.labels(id));
                for (annotator, label, weight) in of_instance {
                    row[*annotator as usize * inputs.labels + *label as usize] += *weight as f32;
                }
            } else if let Some((matrix, rows)) = inputs.annotators
                && let Some(Some(of_annotator)) = rows.get(id)
            {
                scaler.read(matrix, *of_annotator as usize, row);
            }
        }
        numbers
    }
}

impl EmbeddingInput {
    /// The embeddings of this width that a classifier reads where instances have no features.
    pub(crate) fn of_instances(width: usize) -> Self {
        Self { table: INSTANCE_EMBEDDING, owner: Owner::Instance, width }
    }

    /// The rows of these ids, one after the other; an id beyond the table has the mean of all rows.
    pub(crate) fn rows(self, tables: &AnnotatorParams, ids: &[u32]) -> Vec<f32> {
        let (mut numbers, width) = (vec![0.0; ids.len() * self.width], self.width.max(1));
        let (Some(table), mut mean) = (tables.table(self.table), None) else { return numbers };
        for (id, to) in ids.iter().zip(numbers.chunks_exact_mut(width)) {
            if let Some(row) = table.values.chunks_exact(width).nth(*id as usize) {
                to.copy_from_slice(row);
            } else {
                let mean = mean.get_or_insert_with(|| table.mean());
                to.iter_mut().zip(mean).for_each(|(to, m)| *to = *m as f32);
            }
        }
        numbers
    }
}

/// Reads the input of one learner during training.
pub struct Reader {
    pub(crate) input: LearnerInput,
    pub(crate) width: usize,
    pub(crate) scaler: Scaler,
    /// The number of the network's outputs for a row, whose gradient is copied to a device with the input of the next batch.
    /// The device crops and mirrors images then. `None` where the network computes on the host.
    pub(crate) copied_outputs: Option<usize>,
    /// The run with the learner's random streams.
    pub(crate) job: JobContext,
}

impl Reader {
    /// Reads the rows of a batch, and draws with the stream of this name how images are moved.
    pub(super) fn read(&self, inputs: Inputs<'_>, batch: &Batch, stream: &str) -> InputRows {
        let ids = self.input.ids(batch);
        let mut values = self.input.read(inputs, &self.scaler, self.width, ids);
        let mut moves = Vec::new();
        if self.scaler.augments() {
            let mut rng = self.job.rng(stream);
            moves.extend(ids.iter().map(|_| self.scaler.draw_move(&mut rng)));
        }
        let Some(n_outputs) = self.copied_outputs else {
            let images = values.chunks_exact_mut(self.width.max(1));
            moves.into_iter().zip(images).for_each(|(by, image)| self.scaler.augment(image, by));
            return values.into();
        };
        let moves = if moves.is_empty() { Vec::new() } else { self.scaler.move_numbers(&moves) };
        InputRows::for_device(values, &moves, ids.len() * n_outputs)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::frame::{Annotations, Dims, Evidence, Features};
    use crate::model::neural::data::TrainingData;
    use crate::model::neural::data::batching::Batching;
    use crate::model::neural::net::backbone::BackboneSpec;
    use crate::testing::{weighted, with_features};

    const DIMS: Dims = Dims { instances: 3, annotators: 2, classes: 3, labels: 4 };

    fn data<'a>(
        evidence: Evidence<'a>,
        held_out: &Annotations,
        by_annotation: bool,
    ) -> TrainingData<'a> {
        let batching = Batching { batch_size: None, by_annotation, drops_last: false };
        TrainingData::new(evidence, Some(held_out), false, batching).unwrap()
    }

    /// Annotator 0 gives instance 0 the label 1; annotator 1 gives it the labels 3 (which is no class) and 2 with the
    /// weights 0.75 and 0.25, and gives instance 1 the label 0. The annotation of instance 1 by annotator 0 is held
    /// out.
    #[test]
    fn a_row_of_the_matrix_has_the_weights_of_training_annotations() {
        let a = weighted(
            DIMS,
            &[(0, 0, 1), (0, 1, 3), (0, 1, 2), (1, 1, 0)],
            vec![1.0, 0.75, 0.25, 1.0],
        );
        let held_out = weighted(DIMS, &[(1, 0, 2)], vec![1.0]);
        let with_features = with_features(&a);
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        for by_annotation in [false, true] {
            let data = data(evidence, &held_out, by_annotation);
            let sizes = Sizes {
                features: vec![4],
                classes: 3,
                labels: 4,
                annotators: 2,
                ..Sizes::default()
            };
            let input = LearnerInput::Annotations;
            assert_eq!(input.shape(&sizes).unwrap(), [8]);
            assert_eq!(data.ids(input), [0, 1]);
            let scaler = Scaler::identity(&[8], &BackboneSpec::default());
            let read = |ids: &[u32]| input.read(data.inputs(), &scaler, 8, ids);
            let of_0 = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.25, 0.75];
            let of_1 = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0];
            assert_eq!(read(&[1, 0, 1]), [of_1, of_0, of_1].concat());
            assert_eq!(read(input.ids(&data.held_out(&[1], None))), of_1);
            assert_eq!(read(input.ids(&TrainingData::unseen(vec![1]))), [0.0; 8]);
        }
    }

    #[test]
    fn a_matrix_of_annotations_that_is_too_wide_is_refused() {
        let sizes = Sizes {
            features: vec![4],
            classes: 3,
            labels: 4,
            annotators: usize::MAX / 2,
            ..Sizes::default()
        };
        let error = LearnerInput::Annotations.shape(&sizes).unwrap_err();
        assert!(error.to_string().contains("wider than it can be"), "{error}");
        let error = LearnerInput::Annotators.shape(&sizes).unwrap_err();
        assert!(error.to_string().contains("source.annotator_features"), "{error}");
    }

    /// 100 rows of 25 annotators x 4 labels are 40 000 bytes, an eighth of 320 000; other inputs are no such matrix.
    #[test]
    fn a_batch_of_the_matrix_that_does_not_fit_into_memory_is_refused() {
        let sizes = Sizes {
            features: vec![400_000],
            classes: 3,
            labels: 4,
            annotators: 25,
            ..Sizes::default()
        };
        let check = |input: LearnerInput, bytes| {
            input.check_batch(&sizes, 100, &JobContext::new(1).with_memory(bytes))
        };
        assert!(check(LearnerInput::Annotations, 320_000).is_ok());
        let error = check(LearnerInput::Annotations, 319_992).unwrap_err().to_string();
        assert!(error.contains("25 annotators x 4 labels are 40000 bytes"), "{error}");
        assert!(error.contains("39999 are allowed"), "{error}");
        assert!(check(LearnerInput::Features, 8).is_ok());
    }

    /// The features 6 and 2 of annotators 0 and 2 have the mean 4 and the deviation 2; annotator 1 has none.
    #[test]
    fn annotators_features_are_scaled_and_an_unknown_one_is_the_mean() {
        let dims = Dims { annotators: 3, ..DIMS };
        let rows = [(0, 0, 0), (1, 1, 1), (2, 2, 2)];
        let a = weighted(dims, &rows, Vec::new());
        let mut with_features = with_features(&a);
        let matrix = Arc::new(Matrix::from_rows(1, &[2.0, 6.0]));
        let features = Features { matrix, ..with_features.features.clone() };
        with_features.annotators = Some((features, vec![Some(1), None, Some(0)]));
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let none = weighted(DIMS, &[], Vec::new());
        let (data, input) = (data(evidence, &none, false), LearnerInput::Annotators);
        let mut scaler = Scaler::identity(&[1], &BackboneSpec::default());
        data.fit_scaler(&mut scaler, input);
        assert_eq!(data.ids(input), [0, 1, 2]);
        assert_eq!(input.ids(&data.observed(&[2, 0], None)), [0, 2]);
        assert_eq!(input.read(data.inputs(), &scaler, 1, &[2, 0, 1]), [-1.0, 1.0, 0.0]);
    }
}
