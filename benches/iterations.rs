//! The time of one iteration of EM for crowds that a user would recognise, in nanoseconds per annotation.

use std::io::Write as _;
use std::time::Instant;

use labelmill::frame::{AnnotationRows, Annotations, Dims, Duplicates};
use labelmill::job_context::{Cancel, JobContext};
use labelmill::model::em::{DawidSkene, EmSteps, Ibcc, PairEm, PairModel};
use rand::Rng as _;

/// Annotations per instance.
const REDUNDANCY: u32 = 5;

/// One annotation in this many is repeated with another label.
const REPEATED: usize = 1000;

const ITERATIONS: usize = 9;

/// Which annotations have another weight than 1.
#[derive(Debug, Clone, Copy, PartialEq)]
enum WeightCase {
    /// No annotation has.
    None,
    /// Repeated annotations share the weight 1.
    Few,
    /// Each annotation has a random weight.
    All,
}

/// Annotations, classes, annotators and weights.
const ROWS: [(u32, u32, u32, WeightCase); 10] = [
    (100_000, 2, 500, WeightCase::None),
    (1_000_000, 5, 2_000, WeightCase::None),
    (10_000_000, 5, 10_000, WeightCase::None),
    (10_000_000, 5, 10_000, WeightCase::Few),
    (10_000_000, 5, 10_000, WeightCase::All),
    (10_000_000, 6, 100_000, WeightCase::None),
    (1_000_000, 20, 1_000, WeightCase::None),
    (1_000_000, 50, 10_000, WeightCase::None),
    (1_000_000, 300, 10_000, WeightCase::None),
    (10_000_000, 5, 5_000_000, WeightCase::None),
];

/// Prints the table, or those of its rows that `LABELMILL_ROWS` lists.
pub fn print() {
    let listed = std::env::var("LABELMILL_ROWS");
    let is_listed =
        |n: usize| listed.as_ref().is_ok_and(|l| !l.split(',').any(|at| at == n.to_string()));
    println!("| | annotations | classes | annotators | weights | `dawid_skene` | 1979 | `ibcc` |");
    println!("|---|---|---|---|---|---|---|---|");
    for (n, (annotations, classes, annotators, weights)) in (1..).zip(ROWS) {
        if is_listed(n) {
            continue;
        }
        let a = crowd(annotations / REDUNDANCY, annotators, classes, weights);
        print!("| {n} | {annotations} | {classes} | {annotators} | {weights:?} |");
        let times = [
            iteration(&a, DawidSkene::default()),
            iteration(&a, DawidSkene::maximum_likelihood()),
            iteration(&a, Ibcc::default()),
        ];
        println!(" {:.1} | {:.1} | {:.1} |", times[0], times[1], times[2]);
        std::io::stdout().flush().expect("a table can be printed");
    }
}

/// The median time of an iteration in nanoseconds per annotation, without the first iteration.
fn iteration(a: &Annotations, model: impl PairModel) -> f64 {
    let steps = PairEm(model);
    let mut params = steps.params(a);
    steps.start(a, 0, &mut params, &JobContext::new(0));
    let mut seconds: Vec<f64> = (0..ITERATIONS)
        .map(|_| {
            let began = Instant::now();
            assert!(steps.m_step(a, &mut params, &Cancel::default()).is_ok());
            steps.e_step(a, &mut params);
            began.elapsed().as_secs_f64()
        })
        .skip(1)
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2] * 1e9 / a.len() as f64
}

/// A crowd of random annotators of accuracy 0.5 to 0.95; annotators without annotations get no number.
fn crowd(instances: u32, annotators: u32, classes: u32, weights: WeightCase) -> Annotations {
    let mut rng = JobContext::new(7).rng("growth");
    let accuracy: Vec<f64> = (0..annotators).map(|_| rng.random_range(0.5..0.95)).collect();
    let mut numbers = vec![u32::MAX; annotators as usize];
    let (mut rows, mut came) = (AnnotationRows::default(), 0);
    for instance in 0..instances {
        let class = rng.random_range(0..classes);
        for _ in 0..REDUNDANCY {
            let annotator = rng.random_range(0..annotators) as usize;
            if numbers[annotator] == u32::MAX {
                numbers[annotator] = came;
                came += 1;
            }
            let right = rng.random::<f64>() < accuracy[annotator];
            let other = (class + rng.random_range(1..classes)) % classes;
            rows.instance.push(instance);
            rows.annotator.push(numbers[annotator]);
            rows.label.push(if right { class } else { other });
        }
    }
    match weights {
        WeightCase::None => {}
        WeightCase::All => {
            rows.weight = rows.label.iter().map(|_| rng.random_range(0.25..1.25)).collect();
        }
        WeightCase::Few => {
            for n in (0..rows.label.len()).step_by(REPEATED) {
                rows.instance.push(rows.instance[n]);
                rows.annotator.push(rows.annotator[n]);
                rows.label.push((rows.label[n] + 1) % classes);
            }
        }
    }
    let policy = if weights == WeightCase::Few { Duplicates::Share } else { Duplicates::Keep };
    let (instances, annotators) = (instances as usize, came as usize);
    let dims = Dims { instances, annotators, classes: classes as usize, labels: classes as usize };
    Annotations::build(dims, rows, policy).expect("no policy that refuses repeated answers")
}
