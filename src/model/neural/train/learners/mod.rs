//! All learners of a model: the classifier and, if the model defines them, others, such as a teacher or the components
//! of a mixture.
//!
//! Each is trained in the phases that name it, and can be reinitialised by itself.

pub(crate) mod learner;
pub(crate) mod on_device;
mod questions;

use candle_core::backprop::GradStore;

use crate::error::{Error, Result};
use crate::model::neural::data::inputs::{Inputs, LearnerInput, Reader};
use crate::model::neural::data::{TrainingData, batch::Batch};
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::net::input::input_rows::InputRows;
use crate::model::neural::net::optimiser::Optimiser;
use crate::model::neural::net::optimiser::optimiser_spec::OptimiserSpec;
use crate::model::neural::net::parameters::pytorch::to_pytorch;
use crate::model::neural::objective::schedule::{LearnerSubset, Phase};
use crate::model::neural::params::annotator_params::{AnnotatorParams, Gathered};
use crate::model::neural::params::param_table::ParamTable;
use crate::model::neural::train::forward_passes::ForwardPasses;
use crate::model::saved::snapshot::Snapshot;
use learner::{Learner, LearnerSetting, LearnerSpec};

/// All learners of a model.
pub(crate) struct Learners {
    pub(crate) classifier: Learner,
    others: Vec<Learner>,
    /// The numbers of classes and questions: the classifier has logits of each class for each question.
    classes: usize,
    questions: usize,
}

impl Learners {
    /// Builds the classifier and the others.
    ///
    /// # Errors
    /// When the features do not fit a backbone, the saved arrays belong to another model, or the device is out of
    /// memory.
    pub(crate) fn new(
        (classifier, others): (LearnerSpec, Vec<LearnerSpec>),
        setting: &LearnerSetting<'_>,
    ) -> Result<Self> {
        let learner = |spec| Learner::new(spec, setting);
        let classifier = learner(classifier)?;
        let others = others.into_iter().map(learner).collect::<Result<_>>()?;
        let (classes, questions) = (setting.sizes.classes, setting.sizes.n_questions());
        Ok(Self { classifier, others, classes, questions })
    }

    /// The classifier, then the others in the order in which the model names them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Learner> {
        std::iter::once(&self.classifier).chain(&self.others)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Learner> {
        std::iter::once(&mut self.classifier).chain(&mut self.others)
    }

    /// Uses the operations of a GPU in all networks.
    #[cfg(test)]
    pub(crate) fn use_gpu_operations(&mut self) {
        self.all_mut().for_each(|learner| learner.network.use_gpu_operations());
    }

    fn those_of(&mut self, learners: LearnerSubset) -> impl Iterator<Item = &mut Learner> {
        self.all_mut().filter(move |learner| learners.has(learner.name))
    }

    /// Fits the scaling of each learner's input to the training data.
    pub(crate) fn fit_scalers(&mut self, data: &TrainingData<'_>) {
        self.all_mut().for_each(|learner| learner.fit_scaler(data));
    }

    /// The number of rows that every learner can predict at once.
    pub(crate) fn rows_at_once(&self) -> usize {
        self.all().map(Learner::rows_at_once).fold(usize::MAX, usize::min)
    }

    /// The number of multiply-adds of a forward pass of all learners over this many rows.
    pub(crate) fn multiply_adds(&self, rows: usize) -> usize {
        let of_row = self.all().map(|learner| learner.network.multiply_adds());
        rows.saturating_mul(of_row.fold(0, usize::saturating_add))
    }

    /// Whether the learner of this name reads the features of instances.
    pub(super) fn reads_features(&self, name: &str) -> bool {
        self.all().any(|learner| learner.name == name && learner.input == LearnerInput::Features)
    }

    /// Computes the outputs of the classifier and those of the others for a batch.
    pub(crate) fn predict(
        &self,
        inputs: Inputs<'_>,
        batch: &Batch,
    ) -> Result<(Outputs, Vec<Outputs>)> {
        let of = |learner: &Learner| learner.predict(inputs, learner.input.ids(batch));
        let mut out = of(&self.classifier)?;
        self.select_question(&mut out, batch);
        Ok((out, self.others.iter().map(of).collect::<Result<_>>()?))
    }

    /// The outputs of all learners for instances without features; those that read features give all classes the same
    /// probability.
    pub(super) fn predict_without_features(
        &self,
        inputs: Inputs<'_>,
        batch: &Batch,
        classes: usize,
    ) -> Result<(Outputs, Vec<Outputs>)> {
        let of = |learner: &Learner| learner.predict_without_features(inputs, batch, classes);
        let mut out = of(&self.classifier)?;
        self.select_question(&mut out, batch);
        Ok((out, self.others.iter().map(of).collect::<Result<_>>()?))
    }

    /// Computes and keeps the outputs of the learners that are not in `trained`, as long as they fit into memory.
    pub(super) fn freeze(&mut self, trained: LearnerSubset, data: &TrainingData<'_>) -> Result<()> {
        self.all_mut().try_for_each(|learner| learner.freeze(trained, data))
    }

    /// Drops all frozen outputs, before other parameters are loaded.
    pub(super) fn thaw(&mut self) {
        self.all_mut().for_each(|learner| learner.frozen = None);
    }

    /// From now on batch norm keeps its running statistics, also in training.
    pub(in crate::model::neural) fn keep_statistics(&mut self) {
        self.all_mut().for_each(|learner| learner.keeps_statistics = true);
    }

    /// The reader of each learner's input; `None` for a learner whose outputs are frozen.
    pub(super) fn readers(&self) -> Vec<Option<Reader>> {
        self.all().map(Learner::reader).collect()
    }

    /// Computes the outputs of each learner for a batch in training, given the input of each.
    pub(super) fn forward(
        &self,
        batch: &Batch,
        inputs: Vec<InputRows>,
        tables: &AnnotatorParams,
        trained: LearnerSubset,
        stream: &str,
    ) -> Result<ForwardPasses> {
        let mut inputs = inputs.into_iter();
        let mut of = |learner: &Learner| {
            learner.forward(batch, inputs.next().unwrap_or_default(), tables, trained, stream)
        };
        let (pass, mut out) = of(&self.classifier)?;
        self.select_question(&mut out, batch);
        let (mut passes, mut others) = (vec![pass], Vec::new());
        for learner in &self.others {
            let (pass, out) = of(learner)?;
            passes.push(pass);
            others.push(out);
        }
        let are_trained = self.all().map(|learner| trained.has(learner.name)).collect();
        Ok(ForwardPasses { passes, are_trained, out, others })
    }

    /// Whether the inputs of a batch are copied to a device with the gradients of the batch before.
    pub(super) fn copies_inputs(&self) -> bool {
        self.all().any(|learner| learner.network.copied_outputs().is_some())
    }

    /// Whether a learner reads a table of parameters.
    pub(super) fn read_tables(&self) -> bool {
        self.all().any(|learner| learner.embedding().is_some())
    }

    /// Checks that every table that a learner reads exists, with the owner and the width that the learner expects.
    ///
    /// # Errors
    /// When one does not.
    pub(crate) fn check_tables(&self, tables: &AnnotatorParams) -> Result<()> {
        for embedding in self.all().filter_map(Learner::embedding) {
            let table = tables.table(embedding.table);
            let fits = |table: &ParamTable| {
                (table.owner, table.width) == (embedding.owner, embedding.width)
            };
            if !table.is_some_and(fits) {
                return Err(Error::bug(format!("no table of parameters is {embedding:?}")));
            }
        }
        Ok(())
    }

    /// Adds the gradients with respect to the learners' inputs, `[row, column]`, to those of the tables that they read.
    pub(super) fn add_input_gradients(
        &self,
        of_inputs: &[Option<Vec<f64>>],
        batch: &Batch,
        tables: &AnnotatorParams,
        gradient: &mut Gathered,
    ) {
        for (learner, of_input) in self.all().zip(of_inputs) {
            let (Some(embedding), Some(of_input)) = (learner.embedding(), of_input) else {
                continue;
            };
            let all = tables.tables.iter().zip(&mut *gradient);
            let own = all.filter(|(table, _)| table.name == embedding.table);
            for (table, gradient) in own {
                let (rows, width) = (table.owner.rows(batch), table.width.max(1));
                let ids = learner.input.ids(batch).iter();
                for (id, of_row) in ids.zip(of_input.chunks_exact(width)) {
                    let at = rows.partition_point(|row| row < id) * width;
                    let to = &mut gradient[at..at + width];
                    to.iter_mut().zip(of_row).for_each(|(to, g)| *to += g);
                }
            }
        }
    }

    /// The optimiser and rate of each learner in one epoch of a phase: its own optimiser's, or those of `shared`.
    pub(super) fn updates(
        &self,
        shared: &OptimiserSpec,
        phase: &Phase,
        epoch: u32,
    ) -> Vec<LearnerUpdate> {
        let update = |learner: &Learner| {
            let spec = learner.optimiser.as_ref().unwrap_or(shared);
            let rate = phase.learner_rate.unwrap_or(spec.learning_rate);
            LearnerUpdate {
                optimiser: Optimiser::new(spec),
                rate: spec.factor(epoch, phase.epochs) * rate,
                weight_decay: spec.weight_decay,
            }
        };
        self.all().map(update).collect()
    }

    /// Updates the parameters of each learner that has gradients as its update says, each gradient multiplied by `scale`
    /// first.
    pub(super) fn step(
        &mut self,
        gradients: &[Option<GradStore>],
        scale: f64,
        updates: &[LearnerUpdate],
    ) -> Result<()> {
        for ((learner, gradients), update) in self.all_mut().zip(gradients).zip(updates) {
            if let Some(gradients) = gradients {
                let (parameters, LearnerUpdate { optimiser, rate, weight_decay }) =
                    (&mut learner.network.parameters, update);
                parameters.step(gradients, scale, optimiser, *rate, *weight_decay)?;
            }
        }
        Ok(())
    }

    /// The sum of the squares of all gradients.
    pub(super) fn squared_norm(&self, gradients: &[Option<GradStore>]) -> Result<f64> {
        let all = self.all().zip(gradients);
        let of = |(learner, own): (&Learner, &Option<GradStore>)| {
            own.as_ref().map_or(Ok(0.0), |own| learner.network.parameters.squared_norm(own))
        };
        all.map(of).sum()
    }

    /// Whether all parameters are finite numbers.
    pub(super) fn are_finite(&self) -> Result<bool> {
        for learner in self.all() {
            if !learner.network.parameters.is_finite()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sets the moments and step counts of these learners to zero.
    pub(super) fn reset_moments(&mut self, learners: LearnerSubset) {
        self.those_of(learners).for_each(|learner| learner.network.parameters.reset_moments());
    }

    /// Reinitialises the parameters of these learners from the random streams of `name`, and resets their moments and
    /// step counts.
    pub(super) fn reset(&mut self, learners: LearnerSubset, name: &str) -> Result<()> {
        for learner in self.those_of(learners) {
            learner.frozen = None;
            learner.network.parameters.reset(name)?;
        }
        Ok(())
    }

    /// Adds the parameters and scaling of all learners to a snapshot.
    pub(crate) fn save(&self, to: &mut Snapshot) -> Result<()> {
        self.add(to, |learner, own| learner.network.save(own))
    }

    /// Takes the parameters and scaling of all learners from a snapshot.
    ///
    /// # Errors
    /// When the snapshot belongs to other learners, or the device fails.
    pub(crate) fn load(&mut self, from: &Snapshot) -> Result<()> {
        self.all_mut().try_for_each(|learner| learner.network.load(&learner.part_of(from)))
    }

    /// Adds moments and step counts, which only a resumed training needs.
    pub(crate) fn save_moments(&self, to: &mut Snapshot) -> Result<()> {
        self.add(to, |learner, own| learner.network.parameters.save_moments(own))
    }

    /// Takes moments and step counts from a snapshot.
    ///
    /// # Errors
    /// When the snapshot has none.
    pub(crate) fn load_moments(&mut self, from: &Snapshot) -> Result<()> {
        self.all_mut().try_for_each(|learner| {
            let own = learner.part_of(from);
            learner.network.parameters.load_moments(&own)
        })
    }

    /// Converts the arrays of a snapshot to the names and layouts of a saved model.
    pub(crate) fn to_pytorch(&self, snapshot: &Snapshot) -> Snapshot {
        let mut saved = Snapshot::default();
        // The classifier has no prefix, by which the arrays of the others could be told from its own.
        let others = self.others.iter().map(Learner::prefix);
        let alone = others.fold(snapshot.clone(), |all, prefix| all.without(&prefix));
        for (n, learner) in self.all().enumerate() {
            let from = if n == 0 { &alone } else { snapshot };
            let own = to_pytorch(&learner.part_of(from), &learner.heads);
            saved.merge(&learner.prefix(), &own);
        }
        saved
    }

    /// Adds the arrays that `save` writes for each learner, with the learner's prefix.
    fn add(
        &self,
        to: &mut Snapshot,
        save: impl Fn(&Learner, &mut Snapshot) -> Result<()>,
    ) -> Result<()> {
        for learner in self.all() {
            let mut own = Snapshot::default();
            save(learner, &mut own)?;
            to.merge(&learner.prefix(), &own);
        }
        Ok(())
    }
}

/// How the optimiser updates one learner in one epoch.
pub(super) struct LearnerUpdate {
    pub(super) optimiser: Optimiser,
    pub(super) rate: f64,
    pub(super) weight_decay: f64,
}
