//! What the votes and the posteriors of a joint crowd say of each question.

use crate::frame::{Annotations, Dims, Joint, JointQuestion};
use crate::model::posterior::Posterior;

/// Added to each count of the votes before the common matrix starts at their shares.
pub(super) const START_COUNT: f64 = 1.0;

/// The expected counts of the votes, with [`START_COUNT`] more in each cell, `[question, class, label]`.
pub(super) fn counts_of_questions(a: &Annotations, joint: &Joint) -> Vec<f64> {
    let (Dims { classes, labels, .. }, votes) = (a.dims(), Posterior::from_votes(a));
    let mut counts = vec![START_COUNT; joint.questions.len() * classes * labels];
    for (question, own) in joint.questions.iter().zip(counts.chunks_exact_mut(classes * labels)) {
        for i in joint.instances_of(*question) {
            for (_, label, weight) in a.triples_of_instance(i) {
                let rows = own.chunks_exact_mut(labels).zip(votes.row(i));
                rows.for_each(|(row, t)| row[label as usize] += weight * t);
            }
        }
    }
    counts
}

/// P(class) of each question, `[question, class]`.
pub(super) fn priors_of_questions(t: &Posterior, a: &Annotations, joint: &Joint) -> Vec<f64> {
    let of_question = |question: &JointQuestion| {
        let instances = joint.instances_of(*question);
        let mut prior = t.mean_of_annotated_in(a, instances, question.classes);
        prior.resize(a.dims().classes, 0.0);
        prior
    };
    joint.questions.iter().flat_map(of_question).collect()
}
