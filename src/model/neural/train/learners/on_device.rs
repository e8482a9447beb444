//! Learners on the device that a spec names.

use candle_core::Device;

use super::learner::{LearnerSetting, LearnerSpec};
use crate::error::Result;
use crate::model::neural::device::DeviceChoice;
use crate::model::neural::train::learners::Learners;

/// The classifier and the others on the device of this name. Where `auto` has to choose, they are built on the device of
/// `setting` first, and count the multiply-adds of a step with `batch_rows(learners)` rows.
///
/// # Errors
/// When the device cannot be used, or the learners cannot be built.
pub(crate) fn learners_on_device(
    name: &str,
    specs: (LearnerSpec, Vec<LearnerSpec>),
    setting: &LearnerSetting<'_>,
    batch_rows: impl FnOnce(&Learners) -> usize,
) -> Result<(Learners, Device)> {
    let device = DeviceChoice::parse(name)?.open(setting.job, || {
        let learners = Learners::new(specs.clone(), setting)?;
        Ok(learners.multiply_adds(batch_rows(&learners)))
    })?;
    let learners = Learners::new(specs, &LearnerSetting { device: &device, ..*setting })?;
    Ok((learners, device))
}

/// The number of rows of a step in which learners predict `n` rows, by which `auto` chooses a device for them.
pub(crate) fn rows_of_prediction(n: usize) -> impl FnOnce(&Learners) -> usize {
    move |learners: &Learners| learners.rows_at_once().min(n)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Evidence;
    use crate::job_context::JobContext;
    use crate::model::neural::data::TrainingData;
    use crate::model::neural::data::batching::Batching;
    use crate::model::neural::models::Dl;
    use crate::model::neural::spec::Neural;
    use crate::model::neural::tests::training_loop::trainer::trainer_of;
    use crate::testing::{tiny, with_features};

    #[test]
    fn a_prediction_of_one_row_counts_one_row() {
        let a = tiny(2, &[(0, 0, 0), (1, 0, 1)]);
        let with_features = with_features(&a);
        let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
        let data = TrainingData::new(evidence, None, true, Batching::default()).unwrap();
        let spec = Neural::<Dl>::default();
        let learners = trainer_of(&spec, &data, evidence, &JobContext::new(1)).learners;
        let at_once = learners.rows_at_once();
        assert!(at_once > 1, "{at_once}");
        for (n, rows) in [(1, 1), (usize::MAX, at_once)] {
            assert_eq!(rows_of_prediction(n)(&learners), rows);
        }
    }
}
