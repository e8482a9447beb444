//! Points of a calibration by gold: the probabilities of instances whose class is known.

use super::calibrator::Points;
use super::held_out::RowKind;
use crate::frame::{Frame, Gold, Role};
use crate::model::fitted::Fitted;

/// The points of gold of some roles.
pub(super) struct GoldPoints {
    roles: &'static [Role],
    pub(super) points: Points,
    /// The last of the roles that some of the points have.
    pub(super) role: Option<Role>,
}

impl GoldPoints {
    /// The gold of these roles, with the rows of its instances. A classifier predicts annotated instances, which it was
    /// trained on, better than others: where other instances have gold, predictions are compared with that gold alone.
    pub(super) fn collect(
        roles: &'static [Role],
        frame: &Frame,
        fitted: &Fitted,
        rows: RowKind,
    ) -> Self {
        let a = &frame.annotations;
        let mut points = Self::new(roles, a.dims().classes);
        match (rows, &frame.with_features, &fitted.predictions) {
            (RowKind::Posteriors, ..) => {
                let gold = frame.gold.iter().filter(|g| roles.contains(&g.role));
                for gold in gold.filter(|g| a.has_evidence(g.instance as usize)) {
                    points.push(&fitted.posterior.row(gold.instance as usize), gold);
                }
            }
            (RowKind::Predictions, Some(with_features), Some(predictions)) => {
                let gold = || with_features.gold.iter().filter(|g| roles.contains(&g.role));
                let mut is_annotated = vec![false; predictions.len()];
                for (i, row) in with_features.row_of_instance.iter().enumerate() {
                    if let Some(row) = row.filter(|_| a.has_evidence(i)) {
                        is_annotated[row as usize] = true;
                    }
                }
                let is_new = |row: u32| !is_annotated[row as usize];
                let any_new = gold().any(|g| is_new(g.instance));
                for gold in gold().filter(|g| !any_new || is_new(g.instance)) {
                    points.push(predictions.row(gold.instance as usize), gold);
                }
            }
            (RowKind::Predictions, ..) => {}
        }
        points
    }

    fn new(roles: &'static [Role], n_classes: usize) -> Self {
        Self { roles, points: Points::new(n_classes), role: None }
    }

    /// Adds the row of an instance with gold, unless it carries no information.
    fn push(&mut self, row: &[f64], gold: &Gold) {
        let before = self.points.len();
        self.points.push_class(row, gold.class as usize, 1.0);
        if self.points.len() > before {
            let found = [self.role, Some(gold.role)];
            self.role = self.roles.iter().rev().copied().find(|role| found.contains(&Some(*role)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_of_points_is_the_last_one_that_a_point_has() {
        use Role::{Calibrate, Valid};
        let certain = [1.0, 0.0];
        for (pushed, n_points, wanted) in [
            (vec![], 0, None),
            (vec![(Valid, certain), (Calibrate, certain)], 2, Some(Valid)),
            (vec![(Calibrate, certain), (Valid, [0.0; 2])], 1, Some(Calibrate)),
        ] {
            let mut points = GoldPoints::new(&[Calibrate, Valid], 2);
            for (role, row) in pushed {
                points.push(&row, &Gold { instance: 0, class: 0, role });
            }
            assert_eq!((points.points.len(), points.role), (n_points, wanted));
        }
    }
}
