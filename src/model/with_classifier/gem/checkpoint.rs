//! The checkpoints of a fit: one after each round that has fitted the classifier.

use super::{ClassifierEm, Params, Steps};
use crate::error::Result;
use crate::frame::Annotations;
use crate::job_context::JobContext;
use crate::model::em::LoopState;
use crate::model::saved::checkpoint;
use crate::model::saved::checkpoint::Fingerprint;
use crate::model::saved::snapshot::Snapshot;

/// The prefix of the names of the classifier's arrays.
const OF_CLASSIFIER: &str = "classifier.";

/// The prefix of the names of the arrays of rounds that grow trees.
const OF_ROUNDS: &str = "rounds.";

impl<M: ClassifierEm> Steps<'_, M> {
    /// The digest of the settings, the seed, the annotations and the features. It reads all data once.
    pub(super) fn fingerprint_of(&self, a: &Annotations) -> Result<String> {
        let (mut fingerprint, cancel) = (Fingerprint::new(M::KIND), &self.job.cancel);
        fingerprint.add_settings(self.spec)?;
        fingerprint.add_seed(&self.job);
        fingerprint.add_annotations(a, cancel)?;
        fingerprint.add_numbers(self.instances.iter().map(|i| *i as u32));
        fingerprint.add_numbers(self.features.rows().iter().copied());
        fingerprint.add_features(self.features.matrix(), cancel)?;
        Ok(fingerprint.finish())
    }

    /// Saves the state after a round, unless the classifier was trained before it: such rounds are repeated in less time
    /// than their state is written.
    ///
    /// # Errors
    /// When the checkpoint cannot be written.
    pub(super) fn save(&self, state: &LoopState, params: &Params<M::Rows>) -> Result<()> {
        let Some(fingerprint) = &self.fingerprint else { return Ok(()) };
        if !params.was_fitted {
            return Ok(());
        }
        let (mut all, mut of_classifier) = (Snapshot::default(), Snapshot::default());
        state.save(&mut all);
        all.f64s("posterior".to_owned(), params.t.values().to_vec());
        all.f64s("state".to_owned(), params.kernel.state().to_vec());
        params.classifier.save_state(&mut of_classifier)?;
        all.merge(OF_CLASSIFIER, &of_classifier);
        all.f64s("prior".to_owned(), params.prior.clone());
        if self.spec.classifier().grows_trees() {
            all.merge(OF_ROUNDS, &params.save_rounds()?);
        }
        checkpoint::write(fingerprint, all, &self.job)
    }

    /// The state of the last checkpoint, where there is one of this fit; its parameters go into `params`.
    ///
    /// # Errors
    /// When the checkpoint cannot be read, or the device of the classifier cannot be used.
    pub(super) fn saved(
        &self,
        a: &Annotations,
        params: &mut Params<M::Rows>,
        job: &mut JobContext,
    ) -> Result<Option<LoopState>> {
        let Some(fingerprint) = &self.fingerprint else { return Ok(None) };
        let Some(all) = checkpoint::read(fingerprint, job)? else { return Ok(None) };
        let state = LoopState::saved(&all)?;
        params.t = all.take_posterior("posterior", a.dims())?;
        params.count(a);
        params.kernel.set_state(all.take_f64s("state")?);
        params.prior = all.take_n_f64s("prior", params.prior.len())?;
        params.classifier.load_state(&all.part(OF_CLASSIFIER), job)?;
        if self.spec.classifier().grows_trees() {
            self.load_rounds(a, params, &all.part(OF_ROUNDS))?;
        }
        Ok(Some(state))
    }
}
