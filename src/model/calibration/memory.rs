//! The memory of a fit whose posteriors are calibrated.

use super::CalibrationSpec;
use crate::frame::{Dims, MemoryEstimate, QuestionSizes};

impl CalibrationSpec {
    /// About the memory of a fit by a model of this memory, and of its calibration; `None` where it is too much to be
    /// counted.
    ///
    /// Where no gold calibrates, the result of a second fit is held as well, and rows of numbers for each instance that
    /// has held-out annotations: probabilities, P(annotations given class), and those that a map is fitted with.
    ///
    /// Gold counts as gold that calibrates if its instance was read with annotations. In rare cases it does not, and the
    /// second fit is made without a reservation: where all rows of these instances were rejected, or where none of them has
    /// features, by which the predictions are calibrated.
    pub(crate) fn memory_estimate(
        &self,
        of_model: impl Fn(&QuestionSizes) -> Option<MemoryEstimate>,
        sizes: &QuestionSizes,
    ) -> Option<MemoryEstimate> {
        let own = of_model(sizes)?;
        if !self.is_on() {
            return Some(own);
        }
        let row = sizes.dims.classes.checked_mul(size_of::<f64>())?;
        // Calibrated posteriors are dense.
        let posteriors = own.posteriors.max(sizes.dims.instances.checked_mul(row)?);
        let has_gold = self.fit_on.roles().iter().any(|role| sizes.gold_roles.contains(role));
        if has_gold || self.needs_gold() {
            return Some(MemoryEstimate { posteriors, ..own });
        }
        let (points, annotations) = self.held_out(sizes);
        // The probabilities of a compared row, its likelihoods, and their logarithms.
        let points = points.checked_mul(row.checked_mul(3)?)?;
        let likelihoods = annotations.min(sizes.pairs).checked_mul(row)?;
        let compared = points.checked_add(likelihoods)?;
        // The second fit needs its own working memory before the rows are compared.
        let second = own.kept()?.checked_add(own.working.max(compared))?;
        Some(MemoryEstimate { posteriors, working: second, ..own })
    }

    /// About the most instances of which annotations are held out, and the number of these annotations. The former is
    /// that of equally many annotations for each instance.
    // Numbers of instances are not negative.
    #[allow(clippy::cast_sign_loss)]
    fn held_out(&self, sizes: &QuestionSizes) -> (usize, usize) {
        let Dims { instances, .. } = sizes.dims;
        let redundancy = sizes.annotations as f64 / instances.max(1) as f64;
        let share = 1.0 - (1.0 - self.held_out).powf(redundancy);
        let annotations = (sizes.annotations as f64 * self.held_out).ceil() as usize;
        (((instances as f64 * share).ceil() as usize).min(annotations), annotations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Role, dense_memory_estimate};
    use crate::model::calibration::{FitOn, Method};

    /// Posteriors of 80 million numbers, and five annotations for each of 20 million instances.
    fn sizes(gold_roles: &[Role]) -> QuestionSizes {
        let dims = Dims { instances: 20_000_000, annotators: 100_000, classes: 4, labels: 4 };
        let gold_roles = gold_roles.to_vec();
        QuestionSizes { dims, annotations: 100_000_000, pairs: 400_000, gold_roles }
    }

    fn working(method: Method, fit_on: FitOn, gold_roles: &[Role]) -> usize {
        let spec = CalibrationSpec { method, fit_on, ..CalibrationSpec::default() };
        let bytes = spec.memory_estimate(dense_memory_estimate, &sizes(gold_roles)).unwrap();
        assert_eq!(bytes.posteriors, 640_000_000);
        bytes.working
    }

    /// Of the instances 1 - .8^5 = .672 32 have a held-out annotation; their rows have three numbers for each class.
    #[test]
    fn held_out_annotations_need_a_second_fit_and_the_rows_that_they_are_compared_with() {
        let (points, second) = (13_446_400, 640_000_000 + 16 * 8 + 400_000 * 32);
        for fit_on in [FitOn::Auto, FitOn::Annotations] {
            let got = working(Method::Temperature, fit_on, &[Role::Train, Role::Holdout]);
            assert!(got.abs_diff(second + points * 96) <= 96, "{got}");
        }
    }

    #[test]
    fn gold_that_calibrates_needs_no_second_fit() {
        assert_eq!(working(Method::None, FitOn::Auto, &[]), 0);
        assert_eq!(working(Method::Isotonic, FitOn::Auto, &[Role::Calibrate]), 0);
        assert_eq!(working(Method::Isotonic, FitOn::Valid, &[Role::Valid]), 0);
        // Without such gold the job fails, or leaves the posteriors as they are.
        assert_eq!(working(Method::Isotonic, FitOn::Gold, &[]), 0);
        assert_eq!(working(Method::Isotonic, FitOn::Auto, &[]), 0);
        assert!(working(Method::Temperature, FitOn::Annotations, &[Role::Calibrate]) > 0);
    }

    /// One annotation for each of ten instances: two are held out.
    #[test]
    fn no_more_instances_are_compared_than_annotations_are_held_out() {
        let dims = Dims { instances: 40, annotators: 2, classes: 2, labels: 2 };
        let sizes = QuestionSizes { dims, annotations: 10, pairs: 4, gold_roles: Vec::new() };
        assert_eq!(CalibrationSpec::default().held_out(&sizes), (2, 2));
    }
}
