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

/// Prints a table for these numbers of annotations, such as `1e6,1e7`. `LABELMILL_CLASSES`, `LABELMILL_ANNOTATORS` and
/// `LABELMILL_WEIGHTS` may restrict the table to the values that they list.
pub fn print(sizes: &str) {
    let classes = only("LABELMILL_CLASSES", &[5, 6, 8, 20, 50]);
    let crowds = only("LABELMILL_ANNOTATORS", &[1_000, 100_000, 5_000_000]);
    let weights = only("LABELMILL_WEIGHTS", &[WeightCase::None, WeightCase::Few, WeightCase::All]);
    let names: Vec<String> = classes.iter().map(u32::to_string).collect();
    println!("| annotations | annotators | weights | {} classes |", names.join(" | "));
    println!("|---|---|---|{}", "---|".repeat(classes.len()));
    for size in sizes.split(',') {
        // A number of annotations is positive, and the cast saturates.
        #[allow(clippy::cast_sign_loss)]
        let n = size.parse::<f64>().expect("LABELMILL_GROWTH holds numbers") as u32;
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

/// The values that the environment variable lists; all values if it is not set.
fn only<T: Copy + std::fmt::Debug>(variable: &str, all: &[T]) -> Vec<T> {
    let listed = std::env::var(variable).ok();
    let is_listed = |value: &&T| {
        let name = format!("{value:?}");
        listed.as_ref().is_none_or(|listed| listed.split(',').any(|wanted| wanted == name))
    };
    all.iter().filter(is_listed).copied().collect()
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
