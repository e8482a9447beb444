//! The toy data of peerannot, with the numbers of its tests.

use labelmill::frame::Annotations;
use labelmill::model::em::DawidSkene;
use labelmill::model::posterior::best;
use labelmill::model::vote::{MajorityVote, VoteMode, Wawa};
use labelmill::testing::{assert_close, fit, iterations, tiny};

/// github.com/peerannot/peerannot at 2b76ac5, `datasets/toy-data/answers.json`.
fn toy() -> Annotations {
    let rows = [
        (0, 0, 1),
        (0, 1, 0),
        (0, 2, 1),
        (0, 3, 1),
        (1, 0, 1),
        (1, 2, 0),
        (1, 3, 0),
        (2, 1, 1),
        (2, 3, 1),
    ];
    tiny(2, &rows)
}

/// `tests/test_models.py` at 0167502: `test_mv`, `test_ns`, `test_ds` and `test_wawa`. Its test of Wawa lists the scores as
/// .5, 1, 1, .5, and compares only their sum: annotators 0 and 1 are the ones who contradict a majority.
#[test]
fn peerannot_toy() {
    let a = toy();
    let soft = fit(MajorityVote { vote: VoteMode::Soft }, &a);
    for (i, want) in [[0.25, 0.75], [2.0 / 3.0, 1.0 / 3.0], [0.0, 1.0]].iter().enumerate() {
        assert_close(&soft.posterior.row(i), want, 1e-12, "naive soft");
    }
    let wawa = fit(Wawa::default(), &a);
    assert_close(&wawa.report.skill, &[0.5, 0.5, 1.0, 1.0], 1e-12, "worker score");
    let dawid_skene =
        fit(DawidSkene { stop: iterations(10), ..DawidSkene::maximum_likelihood() }, &a);
    for fitted in [soft, wawa, dawid_skene] {
        let labels = [0, 1, 2].map(|i| best(&fitted.posterior.row(i)).unwrap().0);
        assert_eq!(labels, [1, 0, 1]);
    }
}
