//! Common noise, and the instances drawn for it.

use rand::Rng as _;

use super::{assert_near, balanced, plan_of};
use crate::frame::{Matrix, Role};
use crate::job_context::JobContext;
use crate::simulate::annotators::AnnotatorType;
use crate::simulate::draw::draw;
use crate::simulate::plan::{Instances, Plan};
use crate::simulate::recipes::recipe;

#[test]
fn common_noise_has_the_wanted_proportion_and_its_answers_come_from_the_common_matrix() {
    let loaded = recipe("conal-synthetic").unwrap();
    let settings = ["instances=2000", "annotated=1", "proportion=0.3"].map(str::to_owned);
    let design = loaded.load(&settings).unwrap().design;
    let (plan, blobs, job) =
        (design.plan(6).unwrap(), design.blobs().unwrap(), JobContext::new(11));
    let class = blobs.truth(&job);
    let features = blobs.features(&class, 6, &job);
    let rows: Vec<u32> = (0..2000).collect();
    let truth = Instances { class: &class, classes: 6, features: Some((&features, &rows)) };
    let crowd = draw(&plan, truth, &job).unwrap();
    let instances: Vec<u32> = (0..2000).collect();
    let shares = plan.common.as_ref().unwrap().spread(truth, &instances, 30, &job).unwrap();
    let pairs = (0..2000).flat_map(|i| (0..30).map(move |r| (i, r)));
    assert_near(pairs.map(|(i, r)| shares.share(i, r)).sum::<f64>() / 60_000.0, 0.3, 1e-9);
    assert_eq!(crowd.sources.len(), 6000);
    let common = crowd.common.as_ref().unwrap();
    let mut counts = [0.0_f64; 2];
    for (annotation, (is_common, share)) in crowd.annotations.iter().zip(&crowd.sources) {
        let own = &crowd.members[annotation.annotator as usize].own;
        let of = if *is_common { common } else { own };
        assert!(
            of.row(class[annotation.instance as usize] as usize)[annotation.label as usize] > 0.0
        );
        assert!((0.0..=1.0).contains(share));
        counts[usize::from(*is_common)] += 1.0;
    }
    assert_near(counts[1] / 6000.0, 0.3, 0.03);
    // P(right) is 0.6 under common noise and 0.3 under individual noise: strengths 0.4 and 0.7.
    let mean =
        crowd.members.iter().map(|m| m.confusion.accuracy(&crowd.shares)).sum::<f64>() / 30.0;
    assert_near(mean, 0.3 * 0.6 + 0.7 * 0.3, 0.01);
    assert_near(crowd.accuracy(&class), mean, 0.03);
    let without = plan_of("conal-synthetic", &["proportion=0"]);
    let crowd = draw(&without, truth, &job).unwrap();
    assert!(crowd.sources.iter().all(|(is_common, share)| !is_common && *share == 0.0));
}

#[test]
fn a_classifier_that_knows_the_clouds_means_is_right_on_about_nine_in_ten() {
    let design = recipe("conal-synthetic").unwrap().load(&[]).unwrap().design;
    let (blobs, job) = (design.blobs().unwrap(), JobContext::new(2));
    let class = blobs.truth(&job);
    let features = blobs.features(&class, 6, &job);
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

/// Ten balanced classes and features of their instances, three numbers each.
fn pictures(of_each: u32) -> (Vec<u32>, Matrix, Vec<u32>) {
    let class = balanced(of_each);
    let mut rng = JobContext::new(0).rng("test");
    let values: Vec<f32> = (0..3 * class.len()).map(|_| rng.random()).collect();
    let rows = (0..class.len() as u32).collect();
    (class, Matrix::from_rows(3, &values), rows)
}

/// 600 instances, which are two blocks and a partial one, and 7 annotators.
#[test]
fn products_have_the_deviation_one_and_shares_the_wanted_mean_at_any_number_of_threads() {
    let (class, features, rows) = pictures(60);
    let truth = Instances { class: &class, classes: 10, features: Some((&features, &rows)) };
    for proportion in [1e-6, 0.05, 0.5, 0.97] {
        let common = plan_of("conal", &[&format!("proportion={proportion}")]).common.unwrap();
        let drawn = |threads| -> Vec<f64> {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let shares =
                pool.install(|| common.spread(truth, &rows, 7, &JobContext::new(7)).unwrap());
            (0..600)
                .flat_map(|i| (0..7).map(move |r| (i, r)))
                .map(|(i, r)| shares.share(i, r))
                .collect()
        };
        let shares = drawn(3);
        let mean = |values: &[f64]| values.iter().sum::<f64>() / 4200.0;
        assert_near(mean(&shares) / proportion, 1.0, 1e-9);
        let logits: Vec<f64> = shares.iter().map(|p| (p / (1.0 - p)).ln()).collect();
        let centre = mean(&logits);
        let squares: Vec<f64> = logits.iter().map(|x| (x - centre) * (x - centre)).collect();
        assert_near(mean(&squares), 1.0, 1e-9);
        assert_eq!(drawn(1), shares);
    }
}

#[test]
fn features_are_finite_whatever_their_deviation() {
    let loaded = |deviation: &str| {
        let settings = [format!("deviation={deviation}"), "instances=2000".to_owned()];
        recipe("conal-synthetic").unwrap().load(&settings)
    };
    let error = loaded("1e39").err().unwrap().to_string();
    assert!(error.contains("the number must be at most 1e30"), "{error}");
    let (blobs, job) = (loaded("1e30").unwrap().design.blobs().unwrap(), JobContext::new(0));
    let features = blobs.features(&blobs.truth(&job), blobs.classes, &job);
    let mut row = vec![0.0; features.width()];
    for i in 0..2000 {
        features.read(i, &mut row);
        assert!(row.iter().all(|value| value.is_finite()), "{row:?}");
    }
}

#[test]
fn instances_that_look_alike_have_the_wanted_share() {
    let (class, rows) = (vec![0, 1, 1], vec![0, 0, 0]);
    let features = Matrix::from_rows(2, &[0.0, 0.0]);
    let truth = Instances { class: &class, classes: 2, features: Some((&features, &rows)) };
    let common = plan_of("conal", &["proportion=0.2"]).common.unwrap();
    let shares = common.spread(truth, &[0, 1, 2], 4, &JobContext::new(7)).unwrap();
    for (i, r) in (0..3).flat_map(|i| (0..4).map(move |r| (i, r))) {
        assert_near(shares.share(i, r), 0.2, 1e-12);
    }
}

#[test]
fn how_instances_look_does_not_depend_on_how_many_annotators_look() {
    let (class, features, rows) = pictures(1);
    let truth = Instances { class: &class, classes: 10, features: Some((&features, &rows)) };
    let common = plan_of("conal", &[]).common.unwrap();
    // With other annotators the scale and the shift of all products change, but not the ratio of two differences of one
    // annotator's products.
    let ratio = |annotators: usize| {
        let shares = common.spread(truth, &rows, annotators, &JobContext::new(7)).unwrap();
        let logit = |i: usize| (shares.share(i, 0) / (1.0 - shares.share(i, 0))).ln();
        (logit(1) - logit(0)) / (logit(2) - logit(0))
    };
    assert_near(ratio(2), ratio(30), 1e-9);
}

#[test]
fn what_is_not_annotated_chooses_epochs_and_scores() {
    let (class, features, rows) = pictures(100);
    let truth = Instances { class: &class, classes: 10, features: Some((&features, &rows)) };
    let roles = |plan: &Plan| {
        let crowd = draw(plan, truth, &JobContext::new(1)).unwrap();
        let asked: Vec<u32> = crowd.annotations.chunks(3).map(|group| group[0].instance).collect();
        let with_role = [Role::Valid, Role::Holdout].map(|role| crowd.instances_with_role(role));
        let mut all = [asked.clone(), with_role.concat()].concat();
        all.sort_unstable();
        assert_eq!(all, rows);
        (asked.len(), with_role[0].len(), with_role[1].len())
    };
    assert_eq!(roles(&plan_of("conal-synthetic", &[])), (800, 100, 100));
    assert_eq!(roles(&plan_of("conal-synthetic", &["valid=0.2"])), (800, 40, 160));
    assert_eq!(roles(&plan_of("conal", &[])), (1000, 0, 0));
    assert_eq!(roles(&plan_of("conal-cifar", &[])), (800, 200, 0));
}

#[test]
fn pictures_that_look_alike_are_partners_in_common() {
    let (class, features, rows) = pictures(10);
    let truth = Instances { class: &class, classes: 10, features: Some((&features, &rows)) };
    let crowd = draw(&plan_of("conal-cifar", &[]), truth, &JobContext::new(1)).unwrap();
    let common = crowd.common.unwrap();
    // Cat and dog, car and truck, deer and horse, plane and bird, frog and ship.
    for (k, l) in [(3, 5), (1, 9), (4, 7), (0, 2), (6, 8)] {
        for (from, to) in [(k, l), (l, k)] {
            assert_near(common.row(from)[from], 0.6, 1e-12);
            assert_near(common.row(from)[to], 0.4, 1e-12);
        }
    }
}

#[test]
fn partners_are_refused_where_targets_are_drawn() {
    let plan = |name: &str, settings: &[&str]| {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        recipe(name).unwrap().load(&settings).unwrap().design.plan(10)
    };
    for (name, setting) in [("conal", "pairs=0-1"), ("conal-cifar", "noise=asymmetric")] {
        let error = plan(name, &[setting]).unwrap_err().to_string();
        for part in ["asymmetric noise", "where: --set pairs", "noise=symmetric", "--set pairs="] {
            assert!(error.contains(part), "{error}");
        }
    }
    let common = plan("conal-cifar", &["noise=asymmetric", "pairs="]).unwrap().common.unwrap();
    assert_eq!(common.kind, AnnotatorType::PairwiseFlipper(0.6));
}
