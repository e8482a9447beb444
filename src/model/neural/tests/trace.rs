//! The trace determines the matrices that the likelihood leaves open.

use super::*;
use crate::model::neural::net::optimiser::Optimiser;
use crate::model::neural::net::optimiser::moments::Moments;

/// Theorem 1 of Tanno et al. 2019: among all pairs of a classifier's confusion and annotators' matrices with the same
/// product, the one of the smallest trace is the true one. There are three instances, one of each class; each annotator
/// gives them every label with the weight in its matrix; the classifier starts with a third of every class confused with
/// the next.
#[test]
fn the_smallest_trace_is_the_true_one() {
    let truth: [f64; 18] = [
        0.6, 0.3, 0.1, 0.2, 0.7, 0.1, 0.2, 0.2, 0.6, //
        0.5, 0.1, 0.4, 0.3, 0.6, 0.1, 0.1, 0.2, 0.7,
    ];
    let annotation = |b: usize| {
        (0..2).flat_map(move |r| (0..3).map(move |y| (r, y))).map(move |(r, y)| BatchAnnotation {
            annotator: r as u32,
            label: y as u32,
            weight: truth[r * 9 + b * 3 + y],
        })
    };
    let batch = Batch {
        rows: vec![0, 1, 2],
        instances: vec![0, 1, 2],
        offsets: vec![0, 6, 12, 18],
        annotations: (0..3).flat_map(annotation).collect(),
        annotators: vec![0, 1],
        share: vec![1.0; 2],
        trusted: vec![None; 3],
        trusted_share: vec![1.0; 3],
        ..Batch::default()
    };
    let annotations = annotations();
    let optimiser = Optimiser::new(&OptimiserSpec::default());
    // The classifier's confusion, `[class, predicted class]`, and the annotators' matrices.
    let found = |lambda: f64| {
        let model = TraceRegularised { lambda, ..TraceRegularised::default() };
        let job = JobContext::new(1);
        let task = Task {
            evidence: (&annotations).into(),
            dims: annotations.dims(),
            hidden: 0,
            job: &job,
        };
        let mut annotator_params = AnnotatorParams { tables: model.tables(&task).unwrap() };
        let mut logits = [2.0_f32, 1.3, 0.0, 0.0, 2.0, 1.3, 1.3, 0.0, 2.0];
        let mut moments = Moments::default();
        moments.fit(OptimiserKind::Adam, logits.len());
        let p = |logits: &[f32]| {
            let mut p = vec![0.0; logits.len()];
            let logits: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
            for (row, p) in logits.chunks(3).zip(p.chunks_mut(3)) {
                softmax(row, p);
            }
            (logits, p)
        };
        for step in 1..=6000 {
            let (own, p) = p(&logits);
            let out = Outputs { rows: 3, logits: own, p, ..Outputs::default() };
            let gathered = annotator_params.gather(&batch);
            let (batch, out, gathered, crowd_now) = (&batch, &out, &gathered, &annotator_params);
            let (_, gradient) = loss_and_gradient(
                &model,
                &BatchContext {
                    phase: "",
                    estimates: &Estimates::default(),
                    reduction: Reduction::MeanInstance,
                    batch,
                    out,
                    others: &[],
                    gathered,
                    annotator_params: crowd_now,
                    dims: annotations.dims(),
                },
            )
            .unwrap();
            annotator_params.step(batch, &gradient.tables, &optimiser, 0.01);
            let gradient: Vec<f32> = gradient.out.logits.iter().map(|g| *g as f32).collect();
            optimiser.update(&mut logits, &gradient, moments.all(), step, 0.01, 0.0);
        }
        let rho: Vec<f64> =
            annotator_params.tables[0].values.iter().map(|v| f64::from(*v)).collect();
        (p(&logits).1, trace_regularised::matrices(&rho, annotations.dims()))
    };
    let (p, pi) = found(0.01);
    for (at, got) in p.iter().enumerate() {
        let want = f64::from(u8::from(at % 4 == 0));
        assert!((got - want).abs() < 0.01, "{p:?}");
    }
    for (got, want) in pi.iter().zip(truth) {
        assert!((got - want).abs() < 0.005, "{pi:?}, expected {truth:?}");
    }
    // Without the trace another pair has the same likelihood.
    let (p, pi) = found(0.0);
    assert!(p[0] < 0.9, "{p:?}");
    for (cell, want) in truth.iter().enumerate() {
        let (r, k, y) = (cell / 9, cell / 3 % 3, cell % 3);
        let got: f64 = (0..3).map(|j| p[k * 3 + j] * pi[r * 9 + j * 3 + y]).sum();
        assert!(
            (got - want).abs() < 0.005,
            "annotator {r}, class {k}, label {y}: {got}, expected {want}"
        );
    }
}
