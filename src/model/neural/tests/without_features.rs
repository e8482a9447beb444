//! Posteriors of instances without features: by the likelihood of their annotations, each class equally probable before.

use super::fits::{fit, parameters};
use super::*;
use crate::model::posterior::Posterior;
use crate::testing::with_features;

/// Annotators 0 and 1 agree on forty instances with features; annotator 2 gives every second of these another label.
/// Instances 40 and 41 have no features: annotators 0 and 2 give the first the labels 0 and 1, and annotator 2 gives the
/// second the label 2.
fn crowd() -> Annotations {
    let mut rows: Vec<(u32, u32, u32)> = (0..80).map(|n| (n / 2, n % 2, n / 2 % 3)).collect();
    rows.extend((0..40).step_by(2).map(|i| (i, 2, (i + 1) % 3)));
    rows.extend([(40, 0, 0), (40, 2, 1), (41, 2, 2)]);
    tiny(3, &rows)
}

fn fitted<N: CrowdNet>(model: N) -> Fitted {
    let a = crowd();
    let mut with_features = with_features(&a);
    with_features.row_of_instance[40..].fill(None);
    let train = TrainSpec { epochs: 15, ..TrainSpec::default() };
    fit(&on_cpu(train, model), &a, &with_features).unwrap()
}

/// Compares the posteriors of both instances with the products of `likelihood(annotator, label, class)`.
fn expect<N: CrowdNet>(posterior: &Posterior, likelihood: impl Fn(usize, usize, usize) -> f64) {
    for (i, annotations) in [(40, &[(0, 0), (2, 1)][..]), (41, &[(2, 2)])] {
        let terms = [0, 1, 2].map(|k| -> f64 {
            annotations.iter().map(|(r, label)| likelihood(*r, *label, k)).product()
        });
        let sum: f64 = terms.iter().sum();
        for (k, (got, term)) in posterior.row(i).iter().zip(terms).enumerate() {
            let (want, kind) = (term / sum, N::KIND);
            assert!((got - want).abs() < 1e-5, "{kind}, {i}, class {k}: {got}, expected {want}");
        }
    }
    let votes = [0.5, 0.5, 0.0];
    let distance = posterior.row(40).iter().zip(votes).map(|(p, vote)| (p - vote).abs());
    assert!(distance.fold(0.0, f64::max) > 0.05, "{}: {:?}", N::KIND, posterior.row(40));
}

#[test]
fn matrices_of_annotators_decide_without_features() {
    let a = crowd();
    let by_matrices = |fitted: &Fitted, r: usize, label: usize, k: usize| {
        fitted.report.confusion.as_ref().unwrap().column(&a, r, label)[k]
    };
    let trace = fitted(TraceRegularised::default());
    expect::<TraceRegularised>(&trace.posterior.dense(), |r, label, k| {
        by_matrices(&trace, r, label, k)
    });
    let layer = fitted(CrowdLayer::default());
    expect::<CrowdLayer>(&layer.posterior.dense(), |r, label, k| by_matrices(&layer, r, label, k));
    // The matrices are those of the last M-step.
    let em = fitted(AggNet::default());
    expect::<AggNet>(&em.posterior.dense(), |r, label, k| by_matrices(&em, r, label, k) + 1e-4);
    let mig = fitted(MaxMig::default());
    let posterior = mig.posterior.dense().into_owned();
    let v = parameters(mig).find_f32s("crowd.00.log_confusion").unwrap().to_vec();
    expect::<MaxMig>(&posterior, |r, label, k| f64::from(v[(r * 3 + k) * 3 + label]).exp());
}

/// The matrix is that of the vote, whichever annotators gave it: the tied classes of instance 40 share it.
#[test]
fn a_single_matrix_decides_without_features_by_the_vote() {
    let fitted = fitted(SingleConfusion::default());
    let q = fitted.report.common.as_ref().unwrap();
    for (i, votes) in [(40, &[0, 1][..]), (41, &[2])] {
        let of_class =
            |k: usize| -> f64 { votes.iter().map(|vote| q.probability[k * 3 + vote]).sum() };
        let sum: f64 = (0..3).map(of_class).sum();
        for (k, got) in fitted.posterior.row(i).iter().enumerate() {
            let want = of_class(k) / sum;
            assert!((got - want).abs() < 1e-5, "{i}, class {k}: {got}, expected {want}");
        }
    }
}

/// The share of the common matrix follows from the embedding of mean features: the biases of the auxiliary layers, the
/// first of them through the second layer.
#[test]
fn a_mixture_of_matrices_decides_without_features() {
    let fitted = fitted(Conal { mixture: Mixture::RowStochastic, ..Conal::default() });
    let posterior = fitted.posterior.dense().into_owned();
    let (individual, common) = (fitted.report.confusion.clone(), fitted.report.common.clone());
    let (individual, common, a) = (individual.unwrap(), common.unwrap(), crowd());
    let snapshot = parameters(fitted);
    let array = |name: &str| -> Vec<f64> {
        snapshot.find_f32s(name).unwrap().iter().map(|v| f64::from(*v)).collect()
    };
    let (first, weight) = (array("net.auxiliary0.bias"), array("net.auxiliary1.weight"));
    let (mut v, embedding) = (array("net.auxiliary1.bias"), array("crowd.02.embedding"));
    for (x, row) in first.iter().zip(weight.chunks(20)) {
        v.iter_mut().zip(row).for_each(|(v, w)| *v += x * w);
    }
    let length = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    expect::<Conal>(&posterior, |r, label, k| {
        let u = &embedding[r * 20..(r + 1) * 20];
        let dot: f64 = u.iter().zip(&v).map(|(u, v)| u * v).sum();
        let share = 1.0 / (1.0 + (-dot / length(u) / length(&v)).exp());
        share * common.probability[k * 3 + label]
            + (1.0 - share) * individual.column(&a, r, label)[k]
    });
}

/// Models without parameters of annotators have no likelihood, and keep their targets.
#[test]
fn targets_decide_without_features_and_without_parameters_of_annotators() {
    let a = crowd();
    let votes = Posterior::from_votes(&a);
    for posterior in [fitted(Dl::default()).posterior, fitted(SoftBootstrap::default()).posterior] {
        for i in [40, 41] {
            assert_eq!(posterior.row(i), votes.row(i));
        }
    }
}
