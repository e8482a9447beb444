//! Crowds worked out by hand.

use rand::Rng as _;

use super::annotators::{Kind, Manner};
use super::confusion::Confusion;
use super::draw::{Crowd, draw};
use super::plan::{Plan, Truth};
use super::recipes::{RECIPES, recipe};
use super::words::{crowd, kind, links};
use crate::run::Run;

fn matrix(word: &str, classes: usize, seed: u64) -> Confusion {
    let shares = vec![1.0 / classes as f64; classes];
    let kind = kind(word).unwrap();
    kind.confusion(&shares, &mut Run::new(seed).rng("test")).unwrap().unwrap()
}

#[track_caller]
fn assert_rows(got: &Confusion, want: &[&[f64]]) {
    for (k, want) in want.iter().enumerate() {
        let close = got.row(k).iter().zip(*want).all(|(g, w)| (g - w).abs() < 1e-12);
        assert!(close && want.len() == got.classes(), "row {k}: {:?} is not {want:?}", got.row(k));
    }
}

#[track_caller]
fn assert_near(got: f64, want: f64, tolerance: f64) {
    assert!((got - want).abs() <= tolerance, "{got} is not {want} within {tolerance}");
}

/// Ten balanced classes, so many instances of each.
fn balanced(of_each: u32) -> Vec<u32> {
    (0..10 * of_each).map(|i| i % 10).collect()
}

fn drawn(plan: &Plan, class: &[u32], classes: usize, seed: u64) -> Crowd {
    draw(plan, Truth { class, classes, features: None }, &Run::new(seed)).unwrap()
}

#[test]
fn every_type_of_fixed_matrix_is_the_one_worked_out_by_hand() {
    assert_rows(
        &matrix("symmetric(0.4)", 3, 0),
        &[&[0.6, 0.2, 0.2], &[0.2, 0.6, 0.2], &[0.2, 0.2, 0.6]],
    );
    assert_rows(
        &matrix("pair(0.45)", 3, 0),
        &[&[0.55, 0.45, 0.0], &[0.0, 0.55, 0.45], &[0.45, 0.0, 0.55]],
    );
    assert_rows(
        &matrix("pair(0.45 0>2)", 3, 0),
        &[&[0.55, 0.0, 0.45], &[0.0, 0.55, 0.45], &[0.45, 0.0, 0.55]],
    );
    assert_rows(
        &matrix("class-wise(0 2)", 4, 0),
        &[&[1.0, 0.0, 0.0, 0.0], &[0.25; 4], &[0.0, 0.0, 1.0, 0.0], &[0.25; 4]],
    );
    assert_rows(&matrix("hammer-spammer(0.4)", 2, 0), &[&[0.7, 0.3], &[0.3, 0.7]]);
    assert_rows(
        &matrix("neighbour-confuser(0.5)", 4, 0),
        &[
            &[0.5, 0.25, 0.0, 0.25],
            &[0.25, 0.5, 0.25, 0.0],
            &[0.0, 0.25, 0.5, 0.25],
            &[0.25, 0.0, 0.25, 0.5],
        ],
    );
    assert_rows(&matrix("neighbour-confuser(0.5)", 2, 0), &[&[0.5, 0.5], &[0.5, 0.5]]);
    assert_rows(
        &matrix("similar-pair(0.6 0-2 1-3)", 4, 0),
        &[
            &[0.6, 0.0, 0.4, 0.0],
            &[0.0, 0.6, 0.0, 0.4],
            &[0.4, 0.0, 0.6, 0.0],
            &[0.0, 0.4, 0.0, 0.6],
        ],
    );
    assert_rows(
        &matrix("confuser(0 2>0)", 3, 0),
        &[&[1.0, 0.0, 0.0], &[0.0, 1.0, 0.0], &[1.0, 0.0, 0.0]],
    );
    assert_rows(
        &matrix("adversarial(0.24)", 4, 0),
        &[
            &[0.24, 0.0, 0.76, 0.0],
            &[0.0, 0.24, 0.0, 0.76],
            &[0.76, 0.0, 0.24, 0.0],
            &[0.0, 0.76, 0.0, 0.24],
        ],
    );
    assert_rows(
        &matrix("adversarial(0.4 0>2 2>1 1>0)", 3, 0),
        &[&[0.4, 0.0, 0.6], &[0.6, 0.4, 0.0], &[0.0, 0.6, 0.4]],
    );
    assert_rows(&matrix("right", 2, 0), &[&[1.0, 0.0], &[0.0, 1.0]]);
    assert_rows(&matrix("wrong", 3, 0), &[&[0.0, 0.5, 0.5], &[0.5, 0.0, 0.5], &[0.5, 0.5, 0.0]]);
    assert_rows(&matrix("random", 2, 0), &[&[0.5, 0.5], &[0.5, 0.5]]);
    assert_rows(&matrix("constant(1)", 2, 0), &[&[0.0, 1.0], &[0.0, 1.0]]);
    let naive = kind("naive-majority").unwrap();
    let naive = naive.confusion(&[0.2, 0.5, 0.3], &mut Run::new(0).rng("test")).unwrap().unwrap();
    assert_rows(&naive, &[&[0.0, 1.0, 0.0], &[0.0, 1.0, 0.0], &[0.0, 1.0, 0.0]]);
}

#[test]
fn drawn_matrices_have_the_rows_that_their_type_allows() {
    for seed in 0..20 {
        let flipper = matrix("pairwise-flipper(0.3)", 5, seed);
        for k in 0..5 {
            let others: Vec<f64> = flipper
                .row(k)
                .iter()
                .copied()
                .filter(|p| *p > 0.0 && (*p - 0.3).abs() > 1e-9)
                .collect();
            assert_eq!((flipper.right(k), others.as_slice()), (0.3, &[0.7][..]));
        }
        let hammer = matrix("hammer-or-spammer(0.5)", 4, seed);
        // Uniform plus 0.01 on the diagonal, divided by 1.01.
        let spam = [(0.26 / 1.01), (0.25 / 1.01)];
        assert!(hammer.right(0) == 1.0 || (hammer.right(0) - spam[0]).abs() < 1e-12);
        assert!(hammer.row(0)[1] == 0.0 || (hammer.row(0)[1] - spam[1]).abs() < 1e-12);
        assert_eq!(hammer.right(0), hammer.right(3));
        let by_class = matrix("class-wise-hammer-spammer(0.5)", 4, seed);
        for k in 0..4 {
            // A spammer's diagonal weighs 1.1 to 1.11 among ones.
            let spam = by_class.right(k) / by_class.row(k)[(k + 1) % 4];
            assert!(by_class.right(k) == 1.0 || (1.1..1.11).contains(&spam), "{spam}");
        }
        for classes in [6, 7] {
            let pairs = matrix("similar-pair(0.4)", classes, seed);
            let target = |k: usize| (0..classes).find(|l| (pairs.row(k)[*l] - 0.6).abs() < 1e-9);
            let back = (0..classes).filter(|k| target(target(*k).unwrap()) == Some(*k)).count();
            // Of seven classes three go round.
            assert_eq!(back, if classes == 6 { 6 } else { 4 });
        }
    }
    assert_ne!(matrix("pairwise-flipper(0.3)", 9, 1), matrix("pairwise-flipper(0.3)", 9, 2));
}

#[test]
fn rows_sum_to_one_and_the_expected_accuracy_is_the_stated_one() {
    let q = [0.1; 10];
    let stated = [
        ("symmetric(0.8)", 0.2),
        ("pair(0.45)", 0.55),
        ("class-wise(7 8 9)", (3.0 + 7.0 / 10.0) / 10.0),
        ("hammer-spammer(0.4)", 0.4 + 0.6 / 10.0),
        ("pairwise-flipper(0.3)", 0.3),
        ("neighbour-confuser(0.5)", 0.5),
        ("similar-pair(0.6)", 0.6),
        ("adversarial(0.24)", 0.24),
        ("right", 1.0),
        ("wrong", 0.0),
        ("random", 0.1),
        ("constant(3)", 0.1),
        ("naive-majority", 0.1),
    ];
    for (word, accuracy) in stated {
        let confusion = matrix(word, 10, 3);
        for k in 0..10 {
            assert_near(confusion.row(k).iter().sum(), 1.0, 1e-12);
        }
        assert_near(confusion.accuracy(&q), accuracy, 1e-12);
    }
    let hammers = |word: &str| {
        let of_seed = |seed| matrix(word, 10, seed).accuracy(&q);
        (0..400).map(of_seed).sum::<f64>() / 400.0
    };
    // p + (1 - p) / C, but for the little that a spammer knows; 0.02 is one standard error of 400 coins.
    assert_near(hammers("hammer-or-spammer(0.2)"), 0.28, 0.06);
    assert_near(hammers("class-wise-hammer-spammer(0.2)"), 0.28, 0.03);
}

#[test]
fn followers_expect_what_their_reference_does() {
    let of = matrix("symmetric(0.45)", 4, 0);
    assert_eq!(Manner::Imitative.confusion(&of), of);
    assert_near(Manner::Supportive.confusion(&of).accuracy(&[0.25; 4]), 0.55, 1e-12);
    assert_near(Manner::Opposite.confusion(&of).accuracy(&[0.25; 4]), 0.45, 1e-12);
}

#[test]
fn followers_follow_the_answers_that_were_really_given() {
    let groups = "symmetric(0.5), imitative(a00), supportive(a00), opposite(a00), opposite(a03)";
    let class = balanced(50);
    let crowd = drawn(&Plan::of(crowd(groups).unwrap()), &class, 10, 7);
    let mut wrong = [0; 10];
    for said in crowd.annotations.chunks(5) {
        let truth = class[said[0].instance as usize];
        let right: Vec<bool> = said.iter().map(|a| a.label == truth).collect();
        assert_eq!(said[1].label, said[0].label);
        assert_eq!(right[2], right[0]);
        assert_eq!(right[3], !right[0]);
        assert_eq!(right[4], right[0]);
        if !right[2] {
            wrong[((said[2].label + 10 - truth) % 10) as usize] += 1;
        }
    }
    // All nine wrong classes are said, about as often: some 250 wrong answers, 28 each.
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
        let plan = recipe(name).unwrap().load(&[]).unwrap().design.plan().unwrap();
        let crowd = drawn(&plan, &class, 10, 1);
        let mean = crowd.members.iter().map(|m| m.confusion.accuracy(&[0.1; 10])).sum::<f64>();
        assert_near(mean / crowd.members.len() as f64, accuracy, tolerance);
        // Three standard errors of at least 2000 answers, and of groups that are met unevenly.
        assert_near(crowd.accuracy(&class), accuracy, 0.04);
    }
}

#[test]
fn sparse_recipes_ask_three_different_annotators_and_leave_trusted_instances_out() {
    let class = balanced(100);
    let plan = recipe("tcl-ind-1").unwrap().load(&[]).unwrap().design.plan().unwrap();
    let crowd = drawn(&plan, &class, 10, 5);
    // 2 of the 100 instances of each class
    assert_eq!(crowd.trusted.len(), 20);
    for k in 0..10 {
        assert_eq!(crowd.trusted.iter().filter(|i| class[**i as usize] == k).count(), 2);
    }
    assert_eq!((crowd.members.len(), crowd.annotations.len()), (30, 3 * 980));
    for said in crowd.annotations.chunks(3) {
        assert!(said[0].instance == said[2].instance && !crowd.trusted.contains(&said[0].instance));
        assert!(said[0].annotator < said[1].annotator && said[1].annotator < said[2].annotator);
    }
    let plan = recipe("tcl-cor-2").unwrap().load(&[]).unwrap().design.plan().unwrap();
    let crowd = drawn(&plan, &class, 10, 5);
    assert_eq!((crowd.trusted.len(), crowd.annotations.len()), (20, 5 * 1000));
}

#[test]
fn a_budget_buys_fewer_instances_with_more_answers_each() {
    let class = balanced(10);
    let settings = ["redundancy=3", "budget=50", "annotators=20"].map(str::to_owned);
    let plan = recipe("mbem").unwrap().load(&settings).unwrap().design.plan().unwrap();
    assert_eq!(drawn(&plan, &class, 10, 0).annotations.len(), 3 * 16);
}

#[test]
fn one_purpose_s_draws_move_no_other_s() {
    let class = balanced(10);
    let plan = |groups: &str| Plan { redundancy: Some(2), ..Plan::of(crowd(groups).unwrap()) };
    let who = |plan: &Plan| -> Vec<(u32, u32)> {
        drawn(plan, &class, 10, 3).annotations.iter().map(|a| (a.instance, a.annotator)).collect()
    };
    assert_eq!(who(&plan("6*symmetric(0.4)")), who(&plan("6*pairwise-flipper(0.4)")));
    let said = |seed| drawn(&plan("6*random"), &class, 10, seed).annotations;
    assert_eq!(said(1), said(1));
    assert_ne!(said(1), said(2));
}

#[test]
fn common_noise_has_the_wanted_proportion_and_its_answers_come_from_the_common_matrix() {
    let loaded = recipe("conal-synthetic").unwrap();
    let settings = ["instances=2000", "annotated=1", "proportion=0.3"].map(str::to_owned);
    let design = loaded.load(&settings).unwrap().design;
    let (plan, clouds, run) = (design.plan().unwrap(), design.clouds().unwrap(), Run::new(11));
    let class = clouds.truth(&run);
    let features = clouds.features(&class, 6, &run);
    let rows: Vec<u32> = (0..2000).collect();
    let truth = Truth { class: &class, classes: 6, features: Some((&features, &rows)) };
    let crowd = draw(&plan, truth, &run).unwrap();
    let instances: Vec<u32> = (0..2000).collect();
    let shares = plan.common.as_ref().unwrap().spread(truth, &instances, 30, &run).unwrap();
    assert_near(shares.mean(), 0.3, 1e-9);
    assert_eq!(crowd.sources.len(), 6000);
    let common = crowd.common.as_ref().unwrap();
    let mut counts = [0.0_f64; 2];
    for (said, (is_common, share)) in crowd.annotations.iter().zip(&crowd.sources) {
        let own = &crowd.members[said.annotator as usize].own;
        let of = if *is_common { common } else { own };
        assert!(of.row(class[said.instance as usize] as usize)[said.label as usize] > 0.0);
        assert!((0.0..=1.0).contains(share));
        counts[usize::from(*is_common)] += 1.0;
    }
    assert_near(counts[1] / 6000.0, 0.3, 0.03);
    // 0.6 right in common, 0.3 alone: strength 0.4 and 0.7
    let mean =
        crowd.members.iter().map(|m| m.confusion.accuracy(&crowd.shares)).sum::<f64>() / 30.0;
    assert_near(mean, 0.3 * 0.6 + 0.7 * 0.3, 0.01);
    assert_near(crowd.accuracy(&class), mean, 0.03);
    let without = loaded.load(&["proportion=0".to_owned()]).unwrap().design.plan().unwrap();
    let crowd = draw(&without, truth, &run).unwrap();
    assert!(crowd.sources.iter().all(|(is_common, share)| !is_common && *share == 0.0));
}

#[test]
fn a_classifier_that_knows_the_clouds_means_is_right_on_about_nine_in_ten() {
    let design = recipe("conal-synthetic").unwrap().load(&[]).unwrap().design;
    let (clouds, run) = (design.clouds().unwrap(), Run::new(2));
    let class = clouds.truth(&run);
    let features = clouds.features(&class, 6, &run);
    let mut rows = vec![vec![0.0_f32; 32]; class.len()];
    rows.iter_mut().enumerate().for_each(|(i, row)| features.read(i, row));
    let mut means = vec![vec![0.0_f32; 32]; 6];
    for (row, k) in rows.iter().zip(&class) {
        let n = class.iter().filter(|c| *c == k).count() as f32;
        means[*k as usize].iter_mut().zip(row).for_each(|(m, x)| *m += x / n);
    }
    let far = |row: &[f32], mean: &[f32]| -> f32 {
        row.iter().zip(mean).map(|(x, m)| (x - m) * (x - m)).sum()
    };
    let right = rows.iter().zip(&class).filter(|(row, k)| {
        let nearest = (0..6).min_by(|a, b| far(row, &means[*a]).total_cmp(&far(row, &means[*b])));
        nearest == Some(**k as usize)
    });
    let accuracy = right.count() as f64 / class.len() as f64;
    assert!((0.85..=0.95).contains(&accuracy), "{accuracy}");
}

#[test]
fn words_are_read_as_they_are_written() {
    let words = "symmetric(0.8), pair(0.45 0>2), class-wise(7 8 9), hammer-spammer(0.4), similar-pair(0.6 3>5 5>3), \
                 adversarial(0.24 5), adversarial(0.24 0>1 1>0), constant(2), right, opposite(a01)";
    let groups = crowd(words).unwrap();
    let written: Vec<String> = groups.iter().map(|(_, kind)| kind.text(9)).collect();
    assert_eq!(written.join(", "), words);
    assert_eq!(crowd("10*right").unwrap(), [(10, Kind::Right)]);
    assert_eq!(
        kind("similar-pair(0.6 3-5)").unwrap(),
        Kind::SimilarPair(0.6, vec![(3, 5), (5, 3)])
    );
    let error = |word: &str| crowd(word).unwrap_err().to_string();
    assert!(error("symetric(0.8)").contains("did you mean `symmetric`?"));
    assert!(error("symmetric").contains("a chance from 0 to 1 is missing"));
    assert!(error("symmetric(1.5)").contains("`1.5` is not a chance from 0 to 1"));
    assert!(error("symmetric(0.5 0.5)").contains("one word too many"));
    assert!(error("0*right").contains("needs a number of annotators"));
    assert!(error("imitative(b)").contains("`b` is not an annotator such as a00"));
    assert!(error("pair(0.4 3+4)").contains("is not a link"));
    assert!(error("right(").contains("no closing bracket"));
    assert!(error("adversarial(0.5 3 4)").contains("one word too many"));
    assert!(error("confuser(0.5)").contains("a link such as 3>5 or 3-5 is missing"));
    for word in ["pair", "similar-pair", "confuser", "adversarial"] {
        let itself = error(&format!("{word}(0.5 1>2 3>3)"));
        assert!(itself.contains("class 3 is linked to itself"), "{itself}");
        assert!(itself.contains(&format!("write {word}(")), "{itself}");
        let twice = error(&format!("{word}(0.5 3>1 2-3)"));
        assert!(twice.contains("class 3 is linked twice"), "{twice}");
    }
    assert!(links("3-5 4-4").unwrap_err().to_string().contains("class 4 is linked to itself"));
}

#[test]
fn plans_that_fit_nothing_are_refused() {
    let class = [0, 1, 2];
    let truth = Truth { class: &class, classes: 3, features: None };
    let error = |groups: &str, redundancy: Option<usize>| {
        let plan = Plan { redundancy, ..Plan::of(crowd(groups).unwrap()) };
        draw(&plan, truth, &Run::new(0)).err().unwrap().to_string()
    };
    assert!(error("class-wise(7)", None).contains("there is no class 7"));
    assert!(error("similar-pair(0.5 0-1)", None).contains("class 2 needs exactly one partner"));
    assert!(error("adversarial(0.5 3)", None).contains("taken for itself"));
    assert!(error("imitative(a01), right", None).contains("does not come before"));
    assert!(error("right, imitative(a00)", Some(1)).contains("must see every instance"));
    assert!(error("right", Some(2)).contains("more answers than there are annotators"));
    let one = Truth { class: &[0], classes: 1, features: None };
    let plan = Plan::of(crowd("symmetric(0.5)").unwrap());
    let error = draw(&plan, one, &Run::new(0)).err().unwrap().to_string();
    assert!(error.contains("needs two classes"), "{error}");
}

#[test]
fn every_recipe_makes_a_plan_with_its_defaults_and_draws_on_ten_classes() {
    let class = balanced(20);
    let mut rng = Run::new(0).rng("test");
    let values: Vec<f32> = (0..3 * class.len()).map(|_| rng.random()).collect();
    let features = crate::frame::Matrix::from_rows(3, &values);
    let rows: Vec<u32> = (0..class.len() as u32).collect();
    let truth = Truth { class: &class, classes: 10, features: Some((&features, &rows)) };
    for (n, recipe) in RECIPES.iter().enumerate() {
        assert!(RECIPES[..n].iter().all(|r| r.name != recipe.name), "{}", recipe.name);
        let plan = recipe.load(&[]).unwrap().design.plan().unwrap();
        let crowd = draw(&plan, truth, &Run::new(0)).unwrap();
        assert!(!crowd.annotations.is_empty(), "{}", recipe.name);
        assert!(crowd.annotations.is_sorted(), "{}", recipe.name);
    }
}
