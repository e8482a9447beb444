//! All learners of a model: the classifier and, where the model asks for them, others beside it, such as a teacher or the
//! parts of a mixture.
//!
//! Each is trained in the phases that name it and is drawn anew alone.

use candle_core::backprop::GradStore;

use crate::error::Result;
use crate::model::neural::LearnerSubset;
use crate::model::neural::data::inputs::{Inputs, Reader};
use crate::model::neural::data::{TrainingData, batch::Batch};
use crate::model::neural::net::ForwardPass;
use crate::model::neural::net::heads::Outputs;
use crate::model::neural::net::pytorch::to_pytorch;
use crate::model::neural::train::checkpoint::Snapshot;
use crate::model::neural::train::learner::{Learner, LearnerSetting, LearnerSpec};
use crate::model::neural::train::optimiser::Optimiser;

/// All learners of a model.
pub(crate) struct Learners {
    pub(crate) classifier: Learner,
    others: Vec<Learner>,
}

impl Learners {
    /// Builds the classifier and the others.
    ///
    /// # Errors
    /// When the features do not fit a backbone, the numbers are those of another model, or the device is out of memory.
    pub(crate) fn new(
        (classifier, others): (LearnerSpec, Vec<LearnerSpec>),
        setting: &LearnerSetting<'_>,
    ) -> Result<Self> {
        let learner = |spec| Learner::new(spec, setting);
        let classifier = learner(classifier)?;
        Ok(Self { classifier, others: others.into_iter().map(learner).collect::<Result<_>>()? })
    }

    /// The classifier, then the others in the order in which the model names them.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Learner> {
        std::iter::once(&self.classifier).chain(&self.others)
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Learner> {
        std::iter::once(&mut self.classifier).chain(&mut self.others)
    }

    fn those_of(&mut self, learners: LearnerSubset) -> impl Iterator<Item = &mut Learner> {
        self.all_mut().filter(move |learner| learners.has(learner.name))
    }

    /// Fits the scaling of each learner's input to what is trained on.
    pub(crate) fn fit_scalers(&mut self, data: &TrainingData<'_>) {
        self.all_mut().for_each(|learner| learner.fit_scaler(data));
    }

    /// The rows that all learners predict at once.
    pub(crate) fn rows_at_once(&self) -> usize {
        self.all().map(|learner| learner.network.rows_at_once()).fold(usize::MAX, usize::min)
    }

    /// Computes the outputs of the classifier and those of the others for a batch.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn predict(
        &self,
        inputs: Inputs<'_>,
        batch: &Batch,
    ) -> Result<(Outputs, Vec<Outputs>)> {
        let of = |learner: &Learner| learner.predict(inputs, learner.input.ids(batch));
        Ok((of(&self.classifier)?, self.others.iter().map(of).collect::<Result<_>>()?))
    }

    /// The same for instances without features: all classes are alike.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn predict_blind(
        &self,
        inputs: Inputs<'_>,
        batch: &Batch,
        classes: usize,
    ) -> Result<(Outputs, Vec<Outputs>)> {
        let of = |learner: &Learner| learner.predict_blind(inputs, batch, classes);
        Ok((of(&self.classifier)?, self.others.iter().map(of).collect::<Result<_>>()?))
    }

    /// Computes the outputs of learners that are not of `trained` once for all epochs to come, where they fit into memory.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn freeze(&mut self, trained: LearnerSubset, data: &TrainingData<'_>) -> Result<()> {
        self.all_mut().try_for_each(|learner| learner.freeze(trained, data))
    }

    /// Forgets outputs that were computed once, since other parameters are loaded.
    pub(super) fn thaw(&mut self) {
        self.all_mut().for_each(|learner| learner.frozen = None);
    }

    /// What reads the input of each learner, unless its outputs are known.
    pub(super) fn readers(&self) -> Vec<Option<Reader>> {
        self.all().map(Learner::reader).collect()
    }

    /// Computes the outputs of each learner for a batch in training, given the input of each.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn forward(
        &self,
        batch: &Batch,
        inputs: Vec<Vec<f32>>,
        trained: LearnerSubset,
        stream: &str,
    ) -> Result<ForwardPasses> {
        let mut inputs = inputs.into_iter();
        let mut of = |learner: &Learner| {
            learner.forward(batch, inputs.next().unwrap_or_default(), trained, stream)
        };
        let (pass, out) = of(&self.classifier)?;
        let (mut passes, mut others) = (vec![pass], Vec::new());
        for learner in &self.others {
            let (pass, out) = of(learner)?;
            passes.push(pass);
            others.push(out);
        }
        Ok(ForwardPasses { passes, out, others })
    }

    /// Updates the parameters of each learner that has gradients, each gradient multiplied by `scale` first.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn step(
        &mut self,
        gradients: &[Option<GradStore>],
        scale: f64,
        optimiser: &Optimiser,
        rate: f64,
        weight_decay: f64,
    ) -> Result<()> {
        for (learner, gradients) in self.all_mut().zip(gradients) {
            if let Some(gradients) = gradients {
                let parameters = &mut learner.network.parameters;
                parameters.step(gradients, scale, optimiser, rate, weight_decay)?;
            }
        }
        Ok(())
    }

    /// The sum of the squares of all derivatives.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn squared_norm(&self, gradients: &[Option<GradStore>]) -> Result<f64> {
        let all = self.all().zip(gradients);
        let of = |(learner, own): (&Learner, &Option<GradStore>)| {
            own.as_ref().map_or(Ok(0.0), |own| learner.network.parameters.squared_norm(own))
        };
        all.map(of).sum()
    }

    /// Whether all parameters are finite numbers.
    ///
    /// # Errors
    /// When the device fails.
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

    /// Draws the parameters of these learners anew, from the streams of `name`, and forgets what their optimiser keeps.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn reset(&mut self, learners: LearnerSubset, name: &str) -> Result<()> {
        for learner in self.those_of(learners) {
            learner.frozen = None;
            learner.network.parameters.reset(name)?;
        }
        Ok(())
    }

    /// Adds the parameters and scaling of all to a snapshot.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn save(&self, to: &mut Snapshot) -> Result<()> {
        self.add(to, |learner, own| learner.network.save(own))
    }

    /// Takes the parameters and scaling of all from a snapshot.
    ///
    /// # Errors
    /// When it is of other learners, or the device fails.
    pub(crate) fn load(&mut self, from: &Snapshot) -> Result<()> {
        self.all_mut().try_for_each(|learner| learner.network.load(&learner.part_of(from)))
    }

    /// Adds moments and step counts, which only a resumed training needs.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn save_moments(&self, to: &mut Snapshot) -> Result<()> {
        self.add(to, |learner, own| learner.network.parameters.save_moments(own))
    }

    /// Takes moments and step counts from a snapshot.
    ///
    /// # Errors
    /// When it has none.
    pub(super) fn load_moments(&mut self, from: &Snapshot) -> Result<()> {
        self.all_mut().try_for_each(|learner| {
            let own = learner.part_of(from);
            learner.network.parameters.load_moments(&own)
        })
    }

    /// The numbers of a snapshot as a saved model has them.
    pub(crate) fn to_pytorch(&self, snapshot: &Snapshot) -> Snapshot {
        let mut saved = Snapshot::default();
        for learner in self.all() {
            let own = to_pytorch(&learner.part_of(snapshot), &learner.heads);
            saved.merge(&learner.prefix(), &own);
        }
        saved
    }

    /// Adds what `save` makes of each learner, behind the learner's prefix.
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

/// The forward passes of a batch, and their outputs.
pub(super) struct ForwardPasses {
    /// That of each learner, where the phase trains it.
    passes: Vec<Option<ForwardPass>>,
    /// The outputs of the classifier.
    pub(super) out: Outputs,
    /// Those of the others.
    pub(super) others: Vec<Outputs>,
}

impl ForwardPasses {
    /// The gradients by the parameters of each learner that is trained, given those by the outputs.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn backward(
        &self,
        of_out: &Outputs,
        of_others: &[Outputs],
    ) -> Result<Vec<Option<GradStore>>> {
        let of_outputs = std::iter::once(of_out).chain(of_others);
        let backward = |(pass, gradient): (&Option<ForwardPass>, &Outputs)| {
            pass.as_ref().map(|pass| pass.backward(gradient)).transpose()
        };
        self.passes.iter().zip(of_outputs).map(backward).collect()
    }
}
