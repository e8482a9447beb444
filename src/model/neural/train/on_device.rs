//! Learners on the device that a spec names.

use candle_core::Device;

use crate::error::Result;
use crate::model::neural::DeviceChoice;
use crate::model::neural::train::learner::{LearnerSetting, LearnerSpec};
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
    let device = DeviceChoice::parse(name)?.open(setting.run, || {
        let learners = Learners::new(specs.clone(), setting)?;
        Ok(learners.multiply_adds(batch_rows(&learners)))
    })?;
    let learners = Learners::new(specs, &LearnerSetting { device: &device, ..*setting })?;
    Ok((learners, device))
}
