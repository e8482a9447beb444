//! A given crowd, with counts worked out by hand.

use super::*;
use crate::error::Result;
use crate::simulate::draw::Annotation;
use crate::simulate::resample::{SourceCrowd, resample};

/// (instance, annotator, label) on four instances of the classes 0 0 1 1.
const LABELS: [(u32, u32, u32); 8] = [
    (0, 0, 0),
    (0, 1, 1), //
    (1, 0, 0),
    (1, 1, 0), //
    (2, 0, 1), //
    (3, 0, 0),
    (3, 1, 1),
    (3, 2, 1), //
];

/// The same four instances `times` times, and one more that nobody labelled.
fn given(times: u32) -> (Vec<u32>, SourceCrowd) {
    let class = (0..times).flat_map(|_| [0, 0, 1, 1]).chain([1]).collect();
    let annotation = |time: u32| {
        LABELS.map(|(i, annotator, label)| Annotation { instance: 4 * time + i, annotator, label })
    };
    let annotators = ["x", "y", "z"].map(str::to_owned).to_vec();
    (class, SourceCrowd { annotators, annotations: (0..times).flat_map(annotation).collect() })
}

fn resampled(times: u32, settings: &[&str]) -> Result<SimulatedCrowd> {
    let (class, source) = given(times);
    let truth = Instances { class: &class, classes: 2, features: None };
    let plan = plan_of("real", settings);
    resample(&plan, plan.given.unwrap(), &source, truth, &JobContext::new(5))
}

/// x labelled class 0 twice, both right, and class 1 twice, one right; z never labelled class 0, which all annotators
/// together labelled 3 to 1.
#[test]
fn matrices_are_counted_on_the_true_classes() {
    let crowd = resampled(1, &[]).unwrap();
    assert_eq!(crowd.annotations, given(1).1.annotations);
    assert_eq!((crowd.ids.join(" "), crowd.shares), ("x y z".to_owned(), vec![0.5, 0.5]));
    let want: [[&[f64]; 2]; 3] =
        [[&[1.0, 0.0], &[0.5, 0.5]], [&[0.5, 0.5], &[0.0, 1.0]], [&[0.75, 0.25], &[0.0, 1.0]]];
    for (member, want) in crowd.members.iter().zip(want) {
        assert_eq!((member.text(3), member.group), ("given".to_owned(), 0));
        assert_rows(&member.confusion, &want);
    }
    // Two more annotations in each row, split 3 to 1 and 1 to 3.
    let crowd = resampled(1, &["smoothing=2"]).unwrap();
    let want: [[&[f64]; 2]; 3] = [
        [&[3.5 / 4.0, 0.5 / 4.0], &[1.5 / 4.0, 2.5 / 4.0]],
        [&[2.5 / 4.0, 1.5 / 4.0], &[0.5 / 3.0, 2.5 / 3.0]],
        [&[0.75, 0.25], &[0.5 / 3.0, 2.5 / 3.0]],
    ];
    for (member, want) in crowd.members.iter().zip(want) {
        assert_rows(&member.confusion, &want);
    }
}

/// Added annotators label every instance that the crowd labelled, whichever of its own annotations are kept.
#[test]
fn oracles_answer_beside_the_annotations_that_are_kept() {
    let crowd = resampled(1, &["kept=1", "added=right, wrong"]).unwrap();
    assert_eq!(crowd.ids.join(" "), "x y z a03 a04");
    let groups = crowd.members.iter().map(|m| format!("{} {}", m.text(5), m.group));
    assert_eq!(groups.collect::<Vec<_>>(), ["given 0", "given 0", "given 0", "right 1", "wrong 2"]);
    let all = given(1).1.annotations;
    for (instance, class) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        let own: Vec<_> = crowd.annotations.iter().filter(|a| a.instance == instance).collect();
        assert!(own.len() == 3 && all.contains(own[0]), "{own:?}");
        assert_eq!((own[1].annotator, own[1].label), (3, class));
        assert_eq!((own[2].annotator, own[2].label), (4, 1 - class));
    }
    assert_eq!(crowd.annotations.len(), 12);
}

#[test]
fn drawn_labels_come_from_the_matrices_and_from_those_who_labelled() {
    let (class, source) = given(2000);
    let crowd = resampled(2000, &["resample=true"]).unwrap();
    let asked =
        |of: &[Annotation]| of.iter().map(|a| (a.instance, a.annotator)).collect::<Vec<_>>();
    assert_eq!(asked(&crowd.annotations), asked(&source.annotations));
    assert_ne!(crowd.annotations, source.annotations);
    for (r, k, want) in [(0, 0, 1.0), (0, 1, 0.5), (1, 0, 0.5), (1, 1, 0.0), (2, 1, 0.0)] {
        let own = crowd
            .annotations
            .iter()
            .filter(|a| a.annotator == r && class[a.instance as usize] == k);
        let labels: Vec<u32> = own.map(|a| a.label).collect();
        let share = labels.iter().filter(|l| **l == 0).count() as f64 / labels.len() as f64;
        let tolerance = if want == 0.5 { 0.03 } else { 0.0 };
        assert_near(share, want, tolerance);
    }
}

/// x made four of eight annotations, y three and z one: z is left out with the chance 4/8 3/4 + 3/8 4/5 = 0.675.
#[test]
fn who_labelled_more_is_asked_more() {
    let crowd = resampled(2000, &["resample=true", "redundancy=2"]).unwrap();
    assert_eq!(crowd.annotations.len(), 2 * 8000);
    let of_two = |two: &[Annotation]| {
        two[0].instance == two[1].instance && two[0].annotator < two[1].annotator
    };
    assert!(crowd.annotations.chunks(2).all(of_two));
    let of_z = crowd.annotations.iter().filter(|a| a.annotator == 2).count();
    assert_near(of_z as f64 / 8000.0, 0.325, 0.02);
}

/// Repeated annotations of one annotator are all kept, but count once where labels are redrawn.
#[test]
fn repeated_annotations_are_one_where_labels_are_drawn() {
    let (class, mut source) = given(1);
    source.annotations.insert(2, Annotation { instance: 0, annotator: 1, label: 1 });
    let truth = Instances { class: &class, classes: 2, features: None };
    let n = |settings: &[&str]| {
        let plan = plan_of("real", settings);
        let crowd =
            resample(&plan, plan.given.unwrap(), &source, truth, &JobContext::new(5)).unwrap();
        crowd.annotations.len()
    };
    assert_eq!((n(&[]), n(&["resample=true"])), (9, 8));
}

#[test]
fn what_a_given_crowd_cannot_do_is_refused() {
    let error = |settings: &[&str]| resampled(1, settings).err().unwrap().to_string();
    let found = error(&["resample=true", "redundancy=4"]);
    assert!(found.contains("4 answers, 3 annotators"), "{found}");
    let found = error(&["added=right, imitative(a00)"]);
    assert!(found.contains("follows nobody") && found.contains("imitative(a00)"), "{found}");
    let plan = recipe("real").unwrap().load(&["redundancy=2".to_owned()]).unwrap().design.plan(2);
    assert!(plan.unwrap_err().to_string().contains("resample=true"));
    let (class, mut source) = given(1);
    source.annotators[0] = "a03".to_owned();
    let truth = Instances { class: &class, classes: 2, features: None };
    let plan = plan_of("real", &["added=right"]);
    let crowd = resample(&plan, plan.given.unwrap(), &source, truth, &JobContext::new(5));
    let found = crowd.err().unwrap().to_string();
    assert!(found.contains("`a03`"), "{found}");
}
