use super::*;
use crate::model::Model as _;
use crate::model::em::PairEm;
use crate::testing::{erring_half, fit, iterations, objectives, tiny};

// keys: community_bcc.n_communities, community_bcc.precision, community_bcc.pseudo_count
// keys: community_bcc.prior_accuracy, community_bcc.restarts
#[test]
fn the_objective_never_falls_whatever_the_parameters() {
    let of = |precision, pseudo_count, prior_accuracy| CommunityBcc {
        n_communities: 2,
        precision,
        pseudo_count,
        prior_accuracy,
        restarts: 2,
        stop: iterations(40),
    };
    let mut ends = Vec::new();
    for spec in [of(5.0, 10.0, 0.7), of(0.1, 10.0, 0.7), of(5.0, 0.5, 0.7), of(5.0, 10.0, 0.9)] {
        let fitted = fit(spec.clone(), &erring_half());
        assert_eq!(fitted.trace.len(), 3 * 40);
        for row in &fitted.trace {
            assert!(row.change.is_none_or(|c| c > -1e-9), "{spec:?} {row:?}");
        }
        ends.push(fitted.stop.objective.unwrap());
    }
    ends.dedup();
    assert_eq!(ends.len(), 4, "each parameter matters");
}

/// Annotator 6 is right in two of three cases, and those whom he resembles most always are.
#[test]
fn an_annotator_with_few_annotations_resembles_the_community() {
    let label = |i: u32, r: u32| if r < 3 { i % 2 } else { u32::from((i + r) % 5 > 1) };
    let mut rows: Vec<_> = (0..300).map(|n| (n / 6, n % 6, label(n / 6, n % 6))).collect();
    rows.extend([(0, 6, 0), (1, 6, 1), (2, 6, 1)]);
    let a = tiny(2, &rows);
    let of = |precision| {
        let spec = CommunityBcc { n_communities: 2, precision, ..CommunityBcc::default() };
        fit(spec, &a).report
    };
    let report = of(1000.0);
    let community = &report.annotator_parameters[0].1;
    assert_eq!(community[..3], [community[6]; 3]);
    assert!((report.skill[6] - report.skill[0]).abs() < 0.02, "{:?}", report.skill);
    let free = of(0.01);
    assert!(free.skill[6] < free.skill[0] - 0.02, "{:?}", free.skill);
}

/// Annotators 2n and 2n + 1 mirror each other, and each instance has one on which the labels are exchanged: nothing tells the
/// classes apart on the last two, whatever the communities. They hold half of the good, those who always say one label, those
/// who guess, and those who are good for one class.
#[test]
fn evidence_that_is_the_same_for_both_classes_is_a_tie() {
    let mut rows = Vec::new();
    for i in 0..60 {
        let class = i % 2;
        for r in (0..24).filter(|r| (i * 7 + r * 11 + i * r) % 5 < 3) {
            let noise = (i * i * 13 + r * r * 7 + i * r * 3) % 97 % 10;
            let label = match r / 2 % 4 {
                0 => class ^ u32::from(noise == 0),
                1 => r % 2,
                2 => noise % 2,
                _ if r % 2 == class => class,
                _ => class ^ u32::from(noise < 5),
            };
            rows.extend([(2 * i, r, label), (2 * i + 1, r ^ 1, 1 - label)]);
        }
    }
    rows.extend((0..24).map(|r| (120, r, r % 2)));
    rows.extend((8..12).map(|r| (121, r, r % 2)));
    let a = tiny(2, &rows);
    for n_communities in [1, 2, 3, 5] {
        for stop in [StopRule::default(), iterations(100)] {
            let spec = CommunityBcc { n_communities, stop, ..CommunityBcc::default() };
            let fitted = fit(spec, &a);
            for i in [120, 121] {
                let p = fitted.posterior.row(i)[0];
                assert!((p - 0.5).abs() < 1e-12, "{n_communities} {i}: {p}");
            }
            assert!((fitted.posterior.row(0)[0] - 0.5).abs() > 0.1);
        }
    }
}

#[test]
fn the_seed_changes_nothing_but_further_starts() {
    let rows: Vec<_> = (0..120).map(|n| (n / 6, n % 6, n * n % 7 / 3 % 3)).collect();
    let a = tiny(3, &rows);
    let starts = |seed, restarts| {
        let mut job = JobContext::new(seed);
        let spec = CommunityBcc { restarts, stop: iterations(1), ..CommunityBcc::default() };
        objectives(&PairEm(spec).fit((&a).into(), &mut job).unwrap())
    };
    assert_eq!(starts(1, 0), starts(2, 0));
    let (one, other) = (starts(1, 3), starts(2, 3));
    assert_eq!(one, starts(1, 3));
    assert!(one[0] == other[0] && (1..4).all(|n| one[n] != other[n]), "{one:?} {other:?}");
}

#[test]
fn communities_that_the_data_cannot_tell_apart_are_a_warning() {
    let warned = |n_annotators: u32, n_instances: u32| {
        let row = |n: u32| (n / n_annotators, n % n_annotators, n / n_annotators % 2);
        let a = tiny(2, &(0..n_annotators * n_instances).map(row).collect::<Vec<_>>());
        let mut job = JobContext::new(0);
        PairEm(CommunityBcc::default()).fit((&a).into(), &mut job).unwrap();
        job.warnings().first().map(ToString::to_string).unwrap_or_default()
    };
    let few = "3 clusters are more than the annotators: lower model.n_communities to at most 2";
    assert_eq!(warned(2, 20), few);
    let few = warned(3, 3);
    assert!(few.contains("9 annotations for 3 confusion matrices of 2 x 2"), "{few}");
    assert_eq!(warned(3, 4), "");
}
