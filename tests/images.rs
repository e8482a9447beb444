//! Images as features, from files to files: where their shape comes from.

use std::fs::File;
use std::sync::Arc;

use arrow::array::{Array, FixedSizeListArray, RecordBatch};
use arrow::datatypes::{Field, Schema, UInt8Type};
use arrow::ipc::writer::FileWriter;
use parquet::arrow::ArrowWriter;

use crate::job::assert_says;
use crate::network_job::{crowd, ids, job, pipeline, winners, write_features};
use crate::support::read_table;

// keys: model.backbone.input, model.backbone.kind
#[test]
fn bytes_of_images_go_through_convolutions() {
    let job = job();
    let truth = crowd().truth;
    let pixel = |i: usize, at: usize| {
        let class = truth.get(i).copied().unwrap_or(0) as usize;
        if at / 48 == class { 200 } else { ((i * 7 + at) % 40) as u8 }
    };
    let rows =
        (0..200).map(|i| Some((0..144).map(move |at| (i, at)).map(|(i, at)| Some(pixel(i, at)))));
    let rows: Vec<Option<Vec<Option<u8>>>> = rows.map(|row| row.map(Iterator::collect)).collect();
    let images = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(rows, 144);
    write_features(&job.path("features.parquet"), Arc::new(images));
    let lenet = "kind = 'trace_regularised'\nbackbone.kind = 'lenet'";
    let error = job.fails(&pipeline(lenet), 3);
    assert_says(&error, &["the features are no images", "144 numbers", "model.backbone.input"]);
    let shaped = format!("{lenet}\nbackbone.input = [1, 12, 12]\nbackbone.pad_crop = 1");
    let run = job.run(&pipeline(&shaped));
    let right = winners(&read_table(&run, "predictions")).into_iter();
    let right = right.filter(|(i, k)| truth.get(*i as usize) == Some(k)).count();
    assert!(right > 130, "{right} of 150");
}

#[test]
fn tensors_have_the_shape_that_their_file_states() {
    let pixels = (0..200).map(|i| Some((0..144).map(move |at| Some(((i * 7 + at) % 200) as u8))));
    let images = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(pixels, 144);
    let tensor = |extension: &str| {
        let shape = "{\"shape\":[1,12,12]}".to_owned();
        let metadata = [("name", extension.to_owned()), ("metadata", shape)]
            .map(|(key, value)| (format!("ARROW:extension:{key}"), value));
        let field = Field::new("features", images.data_type().clone(), true);
        let schema = Schema::new(vec![
            Field::new("instance_id", ids(0).data_type().clone(), false),
            field.with_metadata(metadata.into()),
        ]);
        RecordBatch::try_new(schema.into(), vec![ids(200), Arc::new(images.clone())]).unwrap()
    };
    let lenet = "kind = 'trace_regularised'\nbackbone.kind = 'lenet'\nbackbone.pad_crop = 1";
    for format in ["parquet", "arrow"] {
        let job = job();
        std::fs::remove_file(job.path("features.parquet")).unwrap();
        let pipeline = pipeline(lenet)
            .replace("features.parquet", &format!("features.{format}"))
            .replace("train.epochs = 20", "train.epochs = 1");
        let write = |rows: &RecordBatch| {
            let file = File::create(job.path(&format!("features.{format}"))).unwrap();
            if format == "parquet" {
                let mut writer = ArrowWriter::try_new(file, rows.schema(), None).unwrap();
                writer.write(rows).unwrap();
                writer.close().unwrap();
            } else {
                let mut writer = FileWriter::try_new(file, &rows.schema()).unwrap();
                writer.write(rows).unwrap();
                writer.finish().unwrap();
            }
        };
        // A shape in the metadata of an unknown extension type does not count.
        write(&tensor("someone.image"));
        assert_says(&job.fails(&pipeline, 3), &["the features are no images", "144 numbers"]);
        write(&tensor("arrow.fixed_shape_tensor"));
        job.run(&pipeline);
    }
}
