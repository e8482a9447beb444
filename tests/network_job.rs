//! A small job of a model that learns from features: its crowd, its files and its pipeline.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, UInt32Array};
use arrow::datatypes::Float32Type;
use labelmill::testing::synth::{CrowdShape, Synthetic};

use crate::job::Job;
use crate::support::{Row, number, write_numbers, write_parquet};

pub const WIDTH: usize = 5;

pub fn crowd() -> Synthetic {
    CrowdShape { instances: 150, annotators: 8, redundancy: 3, ..CrowdShape::default() }.draw(5)
}

/// The true classes of instances 0 to 199; the last fifty have no annotation.
fn truth() -> Vec<u32> {
    crowd().truth.into_iter().chain((150..200).map(|i| i % 3)).collect()
}

/// Noisy one-hot features of these instances.
pub fn features() -> Vec<f32> {
    let truth = truth();
    let cell = |i: usize, k: usize| {
        let noise = ((i * 31 + k * 17) % 23) as f32 / 23.0;
        if k == truth[i] as usize { 2.0 + noise } else { noise }
    };
    (0..200).flat_map(|i| (0..WIDTH).map(move |k| (i, k))).map(|(i, k)| cell(i, k)).collect()
}

pub fn ids(n: u32) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(0..n))
}

pub fn write_features(path: &Path, values: ArrayRef) {
    write_parquet(path, vec![("instance_id", ids(values.len() as u32)), ("features", values)]);
}

pub fn list(values: &[f32], width: usize) -> ArrayRef {
    let rows =
        values.chunks(width).map(|row| Some(row.iter().map(|v| Some(*v)).collect::<Vec<_>>()));
    Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows, width as i32))
}

/// A job with annotations and features, for [`pipeline`].
pub fn job() -> Job {
    let job = Job::new();
    write_numbers(&job.path("annotations.parquet"), &crowd().rows);
    write_features(&job.path("features.parquet"), list(&features(), WIDTH));
    job
}

/// The same with gold of these instances, which calibrates.
pub fn job_with_gold(instances: Range<usize>) -> Job {
    let (job, truth) = (job(), truth());
    let rows: String = instances.map(|i| format!("{i},{},calibrate\n", truth[i])).collect();
    job.write("gold.csv", &format!("instance_id,class,role\n{rows}"));
    job
}

/// [`pipeline`] with that gold, which calibrates by this method.
pub fn calibrated(model: &str, method: &str) -> String {
    let sources = "[source]\ngold = '{dir}gold.csv'";
    let calibration = format!("calibration = {{ method = '{method}', fit_on = 'gold' }}\n");
    calibration + &pipeline(model).replace("[source]", sources)
}

pub fn pipeline(model: &str) -> String {
    format!(
        "[source]\nannotations = '{{dir}}annotations.parquet'\nfeatures = '{{dir}}features.parquet'
         [model]\n{model}\ndevice = 'cpu'\nbackbone.hidden = [16]\nbackbone.dropout = 0.0\ntrain.epochs = 20\ntrain.batch_size = 16\n"
    )
}

/// The (instance, most probable class) pairs of a table of probabilities.
pub fn winners(rows: &[Row]) -> Vec<(u32, u32)> {
    let mut best: Vec<(u32, u32, f64)> = Vec::new();
    for row in rows {
        let (i, k) = (number(row, "instance_id") as u32, number(row, "class") as u32);
        let p = number(row, "probability");
        match best.last_mut() {
            Some(last) if last.0 == i => {
                if p > last.2 {
                    *last = (i, k, p);
                }
            }
            _ => best.push((i, k, p)),
        }
    }
    best.into_iter().map(|(i, k, _)| (i, k)).collect()
}
