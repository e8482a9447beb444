//! Models that are neither votes nor EM: most of them learn how good annotators are from how far two or three of them agree.
//! What they count of pairs is in `co_occurrence.rs`.

mod co_occurrence;
mod kos;
mod label_model;
mod meetings;
mod mmsr;
mod moments;
mod overlaps;
mod spectral_dawid_skene;
mod tensor;

pub use kos::Kos;
pub use label_model::{LabelModel, Optimizer};
pub use mmsr::Mmsr;
pub use spectral_dawid_skene::SpectralDawidSkene;

use super::ModelKind;
use crate::frame::Annotations;
use crate::model::em::kernels::LogLikelihood;

/// The models of this folder.
pub static KINDS: &[ModelKind] = &[
    ModelKind::new::<LabelModel>(),
    ModelKind::new::<Mmsr>(),
    ModelKind::new::<SpectralDawidSkene>(),
    ModelKind::new::<Kos>(),
];

/// (annotator, class, weight) of every annotation of instance `i` that names a class, those of one annotator adjacent; and a
/// trusted class, as the annotation of an annotator who comes after all others.
fn votes(a: &Annotations, i: usize) -> impl Iterator<Item = (u32, u32, f64)> {
    let classes = a.dims().classes as u32;
    let gold = a.trusted_class(i).map(|class| (a.dims().annotators as u32, class, 1.0));
    a.triples_of_instance(i).filter(move |(_, label, _)| *label < classes).chain(gold)
}

/// With fewer trusted instances, most annotators are taken to be right rather than wrong.
const MIN_TRUSTED: usize = 10;

/// Whether trusted classes, rather than most annotators, tell which of two mirrored answers is right.
fn gold_decides(a: &Annotations) -> bool {
    let trusted = (0..a.dims().instances).filter(|i| a.trusted_class(*i).is_some());
    trusted.filter(|i| !a.pairs_of_instance(*i).is_empty()).take(MIN_TRUSTED).count() == MIN_TRUSTED
}

/// The number of annotators in words, where there are fewer than three: of two who differ, nobody can tell who is right.
fn few_annotators(a: &Annotations) -> Option<String> {
    let n = a.dims().annotators;
    (n < 3).then(|| {
        format!("pairs of annotators, and needs three of them to tell who is right; here are {n}")
    })
}

/// ln P(label given class) of every pair of annotator and label, `[pair, class]`.
struct PairLogs<'a> {
    a: &'a Annotations,
    logs: &'a [f64],
}

impl LogLikelihood for PairLogs<'_> {
    fn add(&self, _: usize, annotator: u32, label: u32, logs: &mut [f64]) {
        let Some(pair) = self.a.pair_of(annotator as usize, label as usize) else { return };
        let own = &self.logs[pair * logs.len()..];
        logs.iter_mut().zip(own).for_each(|(log, own)| *log += own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fit, tiny};

    /// Annotators 0 to 2 are right, 3 to 7 say the opposite.
    #[test]
    fn many_trusted_classes_outvote_a_majority_that_is_wrong() {
        let label = |i: u32, r: u32| (i + u32::from(r > 2)) % 2;
        let mut a =
            tiny(2, &(0..320).map(|n| (n / 8, n % 8, label(n / 8, n % 8))).collect::<Vec<_>>());
        a.trusted = Some((0..40).map(|i| (i < 20).then_some(i % 2)).collect());
        let expect = |posterior: Vec<f64>, kind: &str| {
            for i in 20..40 {
                assert!(
                    posterior[2 * i + i % 2] > 0.8,
                    "{kind}: {:?}",
                    &posterior[2 * i..2 * i + 2]
                );
            }
        };
        let rows = |fitted: crate::model::Fitted| fitted.posterior.dense().values().to_vec();
        expect(rows(fit(Kos::default(), &a)), "kos");
        expect(rows(fit(Mmsr::default(), &a)), "mmsr");
        expect(rows(fit(LabelModel::default(), &a)), "label_model");
        // Few of them do not.
        a.trusted = Some((0..40).map(|i| (i < 2).then_some(i % 2)).collect());
        assert!(fit(Kos::default(), &a).posterior.row(20)[1] > 0.5);
    }
}
