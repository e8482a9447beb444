//! The toy crowd with hand-checked numbers: six items, four annotators, three classes.

use labelmill::frame::Annotations;
use labelmill::model::em::{DawidSkene, Em, StopRule};
use labelmill::model::fitted::{Fitted, Posterior};
use labelmill::model::{Model, vote::MajorityVote};
use labelmill::run::Run;
use labelmill::testing::{dense, tiny};

use crate::support::assert_close;

const TOLERANCE: f64 = 1e-6;

fn toy() -> Annotations {
    tiny(
        3,
        &[
            (0, 0, 0),
            (0, 1, 0),
            (0, 2, 1),
            (1, 0, 1),
            (1, 1, 1),
            (1, 3, 1),
            (2, 0, 2),
            (2, 2, 2),
            (2, 3, 0),
            (3, 1, 0),
            (3, 2, 0),
            (3, 3, 2),
            (4, 0, 1),
            (4, 1, 2),
            (4, 2, 1),
            (4, 3, 1),
            (5, 0, 2),
            (5, 3, 1),
        ],
    )
}

fn dawid_skene(smoothing: f64, iterations: u32) -> Fitted {
    let stop = StopRule { max_iter: iterations, tol: 0.0, ..StopRule::default() };
    let spec = DawidSkene { smoothing, stop, ..DawidSkene::default() };
    Em(spec).fit((&toy()).into(), &mut Run::new(0)).unwrap()
}

fn objectives(fitted: &Fitted) -> Vec<f64> {
    fitted.trace.iter().map(|row| row.objective).collect()
}

#[test]
fn soft_votes() {
    let t = Posterior::from_votes(&toy());
    assert_close(t.row(0), &[0.666_667, 0.333_333, 0.0], TOLERANCE, "T0");
    assert_close(t.row(2), &[0.333_333, 0.0, 0.666_667], TOLERANCE, "T2");
    assert_close(t.row(4), &[0.0, 0.75, 0.25], TOLERANCE, "T4");
    assert_close(t.row(5), &[0.0, 0.5, 0.5], TOLERANCE, "T5");
}

#[test]
fn majority_vote_skill() {
    let fitted = MajorityVote::default().fit((&toy()).into(), &mut Run::new(0)).unwrap();
    assert_close(&fitted.report.skill, &[0.8, 0.75, 0.75, 0.6], TOLERANCE, "skill");
}

#[test]
fn dawid_skene_after_one_e_step() {
    let fitted = dawid_skene(0.0, 1);
    assert_close(&objectives(&fitted), &[-13.767_316], TOLERANCE, "LL");
    let t = &fitted.posterior;
    assert_close(t.row(0), &[0.892_857, 0.107_143, 0.0], TOLERANCE, "T0");
    assert_close(t.row(2), &[0.112_285, 0.0, 0.887_715], TOLERANCE, "T2");
    assert_close(t.row(4), &[0.0, 0.982_311, 0.017_689], TOLERANCE, "T4");
    assert_close(t.row(5), &[0.0, 0.447_368, 0.552_632], TOLERANCE, "T5");
    let prior = fitted.report.prior.unwrap();
    assert_close(&prior, &[0.317_096, 0.422_804, 0.260_100], TOLERANCE, "q");
}

#[test]
fn dawid_skene_after_five_e_steps() {
    let fitted = dawid_skene(0.0, 5);
    let ll = [-13.767_316, -11.559_386, -10.791_753, -10.750_848, -10.750_557];
    assert_close(&objectives(&fitted), &ll, TOLERANCE, "LL");
    assert_close(fitted.posterior.row(5), &[0.0, 0.442_596, 0.557_404], TOLERANCE, "T5");
    let prior = fitted.report.prior.clone().unwrap();
    assert_close(&prior, &[0.333_333, 0.407_099, 0.259_567], TOLERANCE, "q");
    let confusion = fitted.report.confusion.unwrap();
    let a = toy();
    let pi: Vec<Vec<f64>> = (0..3).map(|label| confusion.column(&a, 0, label)).collect();
    assert_close(&pi[0], &[1.0, 0.0, 0.0], TOLERANCE, "pi[0][.][0]");
    assert_close(&pi[1], &[0.0, 0.818_801, 0.0], TOLERANCE, "pi[0][.][1]");
    assert_close(&pi[2], &[0.0, 0.181_199, 1.0], TOLERANCE, "pi[0][.][2]");
}

#[test]
fn dawid_skene_smoothed() {
    let fitted = dawid_skene(0.1, 5);
    let ll = objectives(&fitted);
    assert_close(&[ll[0], ll[4]], &[-14.851_215, -12.354_825], TOLERANCE, "LL");
    assert_close(fitted.posterior.row(0), &[0.991_850, 0.005_026, 0.003_125], TOLERANCE, "T0");
    assert_close(fitted.posterior.row(5), &[0.017_987, 0.556_713, 0.425_300], TOLERANCE, "T5");
}

#[test]
fn the_naive_dense_fit_agrees() {
    for (smoothing, diagonal) in [(0.0, 0.0), (0.1, 0.0), (0.05, 0.7)] {
        let a = toy();
        let stop = StopRule { max_iter: 7, tol: 0.0, ..StopRule::default() };
        let spec = DawidSkene { smoothing, diagonal, stop, ..DawidSkene::default() };
        let fitted = Em(spec).fit((&a).into(), &mut Run::new(0)).unwrap();
        let naive = dense::dawid_skene(&a, smoothing, diagonal, 7);
        assert_close(&objectives(&fitted), &naive.ll, 1e-9, "LL");
        assert_close(fitted.posterior.values(), &naive.t.concat(), 1e-9, "T");
        assert_close(&fitted.report.prior.unwrap(), &naive.q, 1e-9, "q");
        let confusion = fitted.report.confusion.unwrap();
        for r in 0..4 {
            for label in 0..3 {
                let naive: Vec<f64> = (0..3).map(|k| naive.pi[r][k][label]).collect();
                let column = confusion.column(&a, r, label);
                assert_close(&column, &naive, 1e-9, &format!("pi[{r}][.][{label}]"));
            }
        }
    }
}
