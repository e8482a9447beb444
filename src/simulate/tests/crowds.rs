//! Plans and recipes: the assignment of annotators, and the tables of a crowd.

use rand::Rng as _;

use super::{assert_near, balanced, drawn, plan_of};
use crate::frame::{Matrix, Role};
use crate::job_context::JobContext;
use crate::simulate::draw::{SimulatedCrowd, draw};
use crate::simulate::grammar::crowd;
use crate::simulate::plan::{Instances, Plan};
use crate::simulate::recipes::{RECIPES, recipe};

#[test]
fn followers_follow_the_answers_that_were_really_given() {
    let groups = "symmetric(0.5), imitative(a00), supportive(a00), opposite(a00), opposite(a03)";
    let class = balanced(50);
    let crowd = drawn(&Plan::new(crowd(groups).unwrap()), &class, 10, 7);
    let mut wrong = [0; 10];
    for group in crowd.annotations.chunks(5) {
        let truth = class[group[0].instance as usize];
        let right: Vec<bool> = group.iter().map(|a| a.label == truth).collect();
        assert_eq!(group[1].label, group[0].label);
        assert_eq!(right[2], right[0]);
        assert_eq!(right[3], !right[0]);
        assert_eq!(right[4], right[0]);
        if !right[2] {
            wrong[((group[2].label + 10 - truth) % 10) as usize] += 1;
        }
    }
    // All nine wrong classes are given, about equally often: some 250 wrong labels, 28 each.
    assert!(wrong[0] == 0 && wrong[1..].iter().all(|n| (10..60).contains(n)), "{wrong:?}");
}

#[test]
fn published_recipes_have_the_published_mean_accuracy() {
    let class = balanced(100);
    let stated = [
        ("tcl-ind-1", 0.35, 0.000_1),
        ("tcl-ind-2", 0.297, 0.000_5),
        ("tcl-ind-3", 0.29, 0.000_1),
        ("tcl-ind-4", 0.357, 0.000_5),
        ("tanno-cifar", 0.45, 0.000_1),
        ("max-mig-low", 0.2, 0.000_1),
        // 0.5, 0.5, 0.7, 0.8, 0.6
        ("max-mig-high", 0.62, 0.000_1),
    ];
    for (name, accuracy, tolerance) in stated {
        let crowd = drawn(&plan_of(name, &[]), &class, 10, 1);
        let mean = crowd.members.iter().map(|m| m.confusion.accuracy(&[0.1; 10])).sum::<f64>();
        assert_near(mean / crowd.members.len() as f64, accuracy, tolerance);
        // Three standard errors of at least 2000 annotations, and of groups drawn unevenly.
        assert_near(crowd.accuracy(&class), accuracy, 0.04);
    }
}

#[test]
fn sparse_recipes_ask_three_different_annotators_and_leave_trusted_instances_out() {
    let class = balanced(100);
    let crowd = drawn(&plan_of("tcl-ind-1", &[]), &class, 10, 5);
    let trusted = crowd.instances_with_role(Role::Train);
    // 2 of the 100 instances of each class
    assert_eq!((trusted.len(), crowd.gold.len()), (20, 20));
    for k in 0..10 {
        assert_eq!(trusted.iter().filter(|i| class[**i as usize] == k).count(), 2);
    }
    assert_eq!((crowd.members.len(), crowd.annotations.len()), (30, 3 * 980));
    for group in crowd.annotations.chunks(3) {
        assert!(group[0].instance == group[2].instance && !trusted.contains(&group[0].instance));
        assert!(group[0].annotator < group[1].annotator && group[1].annotator < group[2].annotator);
    }
    let crowd = drawn(&plan_of("tcl-cor-2", &[]), &class, 10, 5);
    assert_eq!((crowd.gold.len(), crowd.annotations.len()), (20, 5 * 1000));
}

#[test]
fn a_budget_buys_fewer_instances_with_more_answers_each() {
    let class = balanced(10);
    let plan = plan_of("mbem", &["redundancy=3", "budget=50", "annotators=20"]);
    assert_eq!(drawn(&plan, &class, 10, 0).annotations.len(), 3 * 16);
}

#[test]
fn one_purpose_s_draws_move_no_other_s() {
    let class = balanced(10);
    let plan = |groups: &str| Plan { redundancy: Some(2), ..Plan::new(crowd(groups).unwrap()) };
    let pairs_of = |plan: &Plan| -> Vec<(u32, u32)> {
        drawn(plan, &class, 10, 3).annotations.iter().map(|a| (a.instance, a.annotator)).collect()
    };
    assert_eq!(pairs_of(&plan("6*symmetric(0.4)")), pairs_of(&plan("6*pairwise-flipper(0.4)")));
    let annotations = |seed| drawn(&plan("6*random"), &class, 10, seed).annotations;
    assert_eq!(annotations(1), annotations(1));
    assert_ne!(annotations(1), annotations(2));
}

/// (instance, annotator) of every annotation.
fn asked(crowd: &SimulatedCrowd) -> Vec<(u32, u32)> {
    crowd.annotations.iter().map(|a| (a.instance, a.annotator)).collect()
}

#[test]
fn fewer_answers_are_kept_of_the_same_ones_and_all_alike() {
    let class = balanced(30);
    let groups = "groups=symmetric(0.5), imitative(a00), 4*random";
    let of = |kept: &str| drawn(&plan_of("groups", &[groups, kept]), &class, 10, 3).annotations;
    let (two, three, all) = (of("kept=2"), of("kept=3"), of("kept=6"));
    assert_eq!((two.len(), three.len(), all.len()), (2 * 300, 3 * 300, 6 * 300));
    assert_eq!(all, drawn(&plan_of("groups", &[groups]), &class, 10, 3).annotations);
    assert_eq!(all, of("kept=9"));
    assert!(two.is_sorted() && two.chunks(2).all(|group| group[0].instance == group[1].instance));
    assert!(two.iter().all(|a| three.contains(a)) && three.iter().all(|a| all.contains(a)));
    // Each of the six is expected to be kept 100 times, with a deviation of 8.
    let times: Vec<usize> =
        (0..6).map(|r| two.iter().filter(|a| a.annotator == r).count()).collect();
    assert!(times.iter().all(|n| (70..130).contains(n)), "{times:?}");
}

#[test]
fn held_out_instances_are_gold_that_nobody_annotates() {
    let class = balanced(100);
    let share = |name: &str, settings: &[&str]| {
        let crowd = drawn(&plan_of(name, settings), &class, 10, 4);
        let valid = crowd.instances_with_role(Role::Valid);
        assert!(valid.is_sorted() && valid.len() == crowd.gold.len());
        assert!(asked(&crowd).iter().all(|(i, _)| valid.binary_search(i).is_err()));
        (valid.len(), crowd.annotations.len())
    };
    // As in the paper, a tenth of MNIST's training images.
    assert_eq!(share("tanno-mnist", &[]), (100, 5 * 900));
    assert_eq!(share("tanno-mnist", &["valid=0"]), (0, 5 * 1000));
    assert_eq!(share("tanno-cifar", &[]), (0, 4 * 1000));
    assert_eq!(share("tanno-cifar", &["valid=0.25", "labels=one"]), (250, 750));
}

#[test]
fn annotators_of_one_skill_have_that_skill() {
    let words = [
        "symmetric",
        "pair",
        "pairwise-flipper",
        "neighbour-confuser",
        "similar-pair",
        "adversarial",
    ];
    let accuracy = |word: &str| {
        let plan = plan_of("tanno-mnist", &[&format!("annotator={word}"), "p=0.7"]);
        let crowd = drawn(&plan, &balanced(2), 10, 1);
        crowd.members.iter().map(|m| m.confusion.accuracy(&[0.1; 10])).collect::<Vec<f64>>()
    };
    for word in words {
        accuracy(word).iter().for_each(|a| assert_near(*a, 0.7, 1e-9));
    }
    accuracy("hammer-spammer").iter().for_each(|a| assert_near(*a, 0.73, 1e-9));
    let tanno = recipe("tanno-mnist").unwrap();
    let others = ["class-wise", "confuser", "constant", "hammer-or-spammer", "imitative", "right"];
    for word in others {
        let settings = [format!("annotator={word}"), "p=1".to_owned()];
        let error = tanno.load(&settings).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(&format!("`{word}` is not known here")), "{word}: {error}");
    }
}

#[test]
fn predictors_confuse_one_pair_each_and_their_features_tell_which() {
    let design = recipe("lia-predictors").unwrap();
    let settings = ["one_way=7", "both_ways=2", "kept=4"].map(str::to_owned);
    let plan = design.load(&settings).unwrap().design.plan(3).unwrap();
    let class: Vec<u32> = (0..60).map(|i| i % 3).collect();
    let crowd = drawn(&plan, &class, 3, 0);
    // All six ordered pairs, then the first again.
    let pairs = [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1), (0, 1)];
    for (r, (k, l)) in pairs.into_iter().enumerate() {
        let right = |class: usize| if class == k { l } else { class };
        for class in 0..3 {
            let row: Vec<f64> =
                (0..3).map(|label| f64::from(u8::from(label == right(class)))).collect();
            assert_eq!(crowd.members[r].confusion.row(class), row);
        }
        let mut features = [0.0_f32; 6];
        (features[k], features[3 + l]) = (-1.0, 1.0);
        assert_eq!(crowd.features[r], features);
    }
    let both = &crowd.members[8].confusion;
    assert_eq!((both.row(0), both.row(1)), (&[1.0, 0.0, 0.0][..], &[0.0, 0.5, 0.5][..]));
    assert_eq!(crowd.features[7], [-0.5, -0.5, 0.0, 0.5, 0.5, 0.0]);
    assert_eq!(crowd.features[8], [0.0, -0.5, -0.5, 0.0, 0.5, 0.5]);
    assert_eq!((crowd.features.len(), crowd.annotations.len()), (9, 4 * 60));
    for annotation in crowd.annotations.iter().filter(|a| a.annotator < 7) {
        let (k, l) = pairs[annotation.annotator as usize];
        let truth = class[annotation.instance as usize] as usize;
        assert_eq!(annotation.label as usize, if truth == k { l } else { truth });
    }
    let two = design.load(&[]).unwrap().design.plan(2).unwrap();
    let crowd = drawn(&two, &[0, 1, 0, 1], 2, 0);
    assert_eq!(crowd.features[..2], [[-1.0, 0.0, 0.0, 1.0], [0.0, -1.0, 1.0, 0.0]]);
    let many = ["both_ways=1000000000000".to_owned()];
    let error = design.load(&many).err().unwrap().to_string();
    assert!(error.contains("the number must be at most 1000000"), "{error}");
    let none = ["one_way=0", "both_ways=0"].map(str::to_owned);
    let error = design.load(&none).unwrap().design.plan(2).unwrap_err().to_string();
    assert!(error.contains("a crowd needs an annotator"), "{error}");
}

#[test]
fn more_annotators_than_any_number_are_as_many_as_the_largest() {
    let groups = crowd(&format!("{}*right, 2*right", usize::MAX)).unwrap();
    assert_eq!(Plan::new(groups).annotators(), usize::MAX);
}

#[test]
fn plans_that_fit_nothing_are_refused() {
    let class = [0, 1, 2];
    let truth = Instances { class: &class, classes: 3, features: None };
    let error = |groups: &str, redundancy: Option<usize>| {
        let plan = Plan { redundancy, ..Plan::new(crowd(groups).unwrap()) };
        draw(&plan, truth, &JobContext::new(0)).err().unwrap().to_string()
    };
    assert!(error("class-wise(7)", None).contains("there is no class 7"));
    assert!(error("similar-pair(0.5 0-1)", None).contains("class 2 needs exactly one partner"));
    assert!(error("adversarial(0.5 3)", None).contains("class 0 would be taken for itself"));
    assert!(error("adversarial(0.5 0-1)", None).contains("class 2 would be taken for itself"));
    assert!(error("adversarial(0.5 0>1 1>2)", None).contains("class 2 would be taken for itself"));
    let twice = error("adversarial(0.5 0-1 2>0)", None);
    assert!(twice.contains("2 classes would be taken for class 0"), "{twice}");
    assert!(error("adversarial(0.5 0>1 1>2 2>9)", None).contains("there is no class 9"));
    assert!(error("imitative(a01), right", None).contains("does not come before"));
    let large = error("99*right, imitative(a100), right", None);
    for part in ["`imitative(a100)`", "it is a099 itself", "numbered from a000"] {
        assert!(large.contains(part), "{large}");
    }
    let sparse = error("100*right, imitative(a7)", Some(3));
    assert!(sparse.contains("`imitative(a007)`"), "{sparse}");
    assert!(error("right, imitative(a00)", Some(1)).contains("must see every instance"));
    assert!(error("right", Some(2)).contains("more answers than there are annotators"));
    let one = Instances { class: &[0], classes: 1, features: None };
    let plan = Plan::new(crowd("symmetric(0.5)").unwrap());
    let error = draw(&plan, one, &JobContext::new(0)).err().unwrap().to_string();
    assert!(error.contains("needs two classes"), "{error}");
}

#[test]
fn every_recipe_makes_a_plan_with_its_defaults_and_draws_on_ten_classes() {
    let class = balanced(20);
    let mut rng = JobContext::new(0).rng("test");
    let values: Vec<f32> = (0..3 * class.len()).map(|_| rng.random()).collect();
    let features = Matrix::from_rows(3, &values);
    let rows: Vec<u32> = (0..class.len() as u32).collect();
    let truth = Instances { class: &class, classes: 10, features: Some((&features, &rows)) };
    for (n, recipe) in RECIPES.iter().enumerate() {
        assert!(RECIPES[..n].iter().all(|r| r.name != recipe.name), "{}", recipe.name);
        let plan = recipe.load(&[]).unwrap().design.plan(10).unwrap();
        if plan.given.is_some() {
            continue;
        }
        let crowd = draw(&plan, truth, &JobContext::new(0)).unwrap();
        assert!(!crowd.annotations.is_empty(), "{}", recipe.name);
        assert!(crowd.annotations.is_sorted(), "{}", recipe.name);
    }
}
