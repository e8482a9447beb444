//! The time of one Dawid-Skene iteration for growing numbers of annotations, classes and annotators, in nanoseconds per
//! annotation and class.

use std::io::Write as _;
use std::time::Instant;

use labelmill::frame::{AnnotationRows, Annotations, Dims, Duplicates};
use labelmill::model::em::{DawidSkene, EmSteps};
use labelmill::model::posterior::Posterior;
use labelmill::run::{Cancel, Run};
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

/// Prints a table for these numbers of annotations, such as `1e6,1e7`. `LABELMILL_CLASSES` and `LABELMILL_ANNOTATORS` may
/// list other numbers than the default ones, and `LABELMILL_WEIGHTS` may restrict the table to the cases that it lists.
pub fn print(sizes: &str) {
    let classes = numbers("LABELMILL_CLASSES", &[5, 6, 8, 20, 50]);
    let crowds = numbers("LABELMILL_ANNOTATORS", &[1_000, 100_000, 5_000_000]);
    let weights = weight_cases();
    let names: Vec<String> = classes.iter().map(u32::to_string).collect();
    println!("| annotations | annotators | weights | {} classes |", names.join(" | "));
    println!("|---|---|---|{}", "---|".repeat(classes.len()));
    for size in sizes.split(',') {
        let n = number(size);
        for annotators in &crowds {
            for weights in &weights {
                print!("| {size} | {annotators} | {weights:?} |");
                for classes in &classes {
                    let nanoseconds =
                        iteration(&crowd(n / REDUNDANCY, *annotators, *classes, *weights));
                    print!(" {:.2} ({nanoseconds:.1}) |", nanoseconds / f64::from(*classes));
                    std::io::stdout().flush().expect("a table can be printed");
                }
                println!();
            }
        }
    }
}

/// The numbers that the environment variable lists; the default ones if it is not set.
fn numbers(variable: &str, default: &[u32]) -> Vec<u32> {
    let listed = std::env::var(variable);
    listed.map_or_else(|_| default.to_vec(), |listed| listed.split(',').map(number).collect())
}

/// A number such as `1000` or `1e6`.
fn number(text: &str) -> u32 {
    let number: f64 = text.parse().expect("numbers, separated by commas");
    // The numbers are positive, and the cast saturates.
    #[allow(clippy::cast_sign_loss)]
    let number = number as u32;
    number
}

/// The cases that `LABELMILL_WEIGHTS` lists; all if it is not set.
fn weight_cases() -> Vec<WeightCase> {
    let listed = std::env::var("LABELMILL_WEIGHTS").ok();
    let is_listed = |case: &WeightCase| {
        let name = format!("{case:?}");
        listed.as_ref().is_none_or(|listed| listed.split(',').any(|wanted| wanted == name))
    };
    [WeightCase::None, WeightCase::Few, WeightCase::All].into_iter().filter(is_listed).collect()
}

/// The median time of an iteration in nanoseconds per annotation, without the first iteration.
fn iteration(a: &Annotations) -> f64 {
    let spec = DawidSkene::default();
    let (mut params, mut t) = (spec.params(a), Posterior::from_votes(a));
    spec.count(a, &t, &mut params);
    let mut seconds: Vec<f64> = (0..ITERATIONS)
        .map(|_| {
            let began = Instant::now();
            assert!(spec.m_step(a, &t, &mut params, &Cancel::default()).is_ok());
            spec.e_step(a, &mut params, &mut t);
            began.elapsed().as_secs_f64()
        })
        .skip(1)
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2] * 1e9 / a.len() as f64
}

/// A crowd of random annotators of accuracy 0.5 to 0.95; annotators without annotations get no number.
fn crowd(instances: u32, annotators: u32, classes: u32, weights: WeightCase) -> Annotations {
    let mut rng = Run::new(7).rng("growth");
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
