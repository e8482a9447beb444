//! The crowd as output tables, which labelmill can read back.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Float32Builder, Float64Array, Int64Array, ListBuilder, RecordBatch, StringArray,
};
use arrow::datatypes::{DataType, Field};

use super::annotators::confusion::ConfusionMatrix;
use super::draw::SimulatedCrowd;
use super::ground_truth::GroundTruth;
use crate::error::Result;
use crate::tables::ComputedTable;

/// A table without nulls, whose batches `columns` computes by name for a range of rows.
fn table<'a>(
    name: &'static str,
    rows: usize,
    columns: impl Fn(Range<usize>) -> Result<Vec<(&'static str, ArrayRef)>> + Send + Sync + 'a,
) -> Result<ComputedTable<'a>> {
    let batch = move |range: Range<usize>| {
        let columns = columns(range)?.into_iter().map(|(name, array)| (name, array, false));
        Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
    };
    let schema = batch(0..0)?.schema();
    Ok(ComputedTable::new(name, schema, (rows, 1), batch))
}

/// Every table of a crowd. The tables of common noise, gold, annotator features and drawn features are left out where
/// the crowd has none.
pub(super) fn tables<'a>(
    ground_truth: &'a GroundTruth,
    crowd: &'a SimulatedCrowd,
    recipe: &'a [(String, String)],
) -> Result<Vec<ComputedTable<'a>>> {
    let mut tables = vec![
        annotations(ground_truth, crowd)?,
        truth(ground_truth)?,
        confusion(ground_truth, crowd, "true_confusion", |r| &crowd.members[r].confusion)?,
        annotators(crowd)?,
        settings(recipe)?,
    ];
    if let Some(common) = &crowd.common {
        tables.push(sources(ground_truth, crowd)?);
        tables.push(confusion(ground_truth, crowd, "individual_confusion", |r| {
            &crowd.members[r].own
        })?);
        tables.push(common_confusion(ground_truth, common)?);
    }
    if !crowd.gold.is_empty() {
        tables.push(gold(ground_truth, crowd)?);
    }
    if !crowd.features.is_empty() {
        tables.push(annotator_features(crowd)?);
    }
    if ground_truth.draws_features {
        tables.push(features(ground_truth)?);
    }
    Ok(tables)
}

fn annotations<'a>(
    ground_truth: &'a GroundTruth,
    crowd: &'a SimulatedCrowd,
) -> Result<ComputedTable<'a>> {
    table("annotations", crowd.annotations.len(), move |rows| {
        let rows = &crowd.annotations[rows];
        Ok(vec![
            ("instance_id", ground_truth.ids(rows.iter().map(|a| a.instance))?),
            ("annotator_id", names(crowd, rows.iter().map(|a| a.annotator as usize))),
            ("label", ground_truth.labels(rows.iter().map(|a| a.label))?),
        ])
    })
}

fn truth(ground_truth: &GroundTruth) -> Result<ComputedTable<'_>> {
    table("truth", ground_truth.class.len(), move |rows| {
        Ok(vec![
            ("instance_id", ground_truth.ids(rows.clone().map(|i| i as u32))?),
            ("class", ground_truth.labels(ground_truth.class[rows].iter().copied())?),
        ])
    })
}

/// A full confusion matrix for each annotator.
fn confusion<'a>(
    ground_truth: &'a GroundTruth,
    crowd: &'a SimulatedCrowd,
    name: &'static str,
    of: impl Fn(usize) -> &'a ConfusionMatrix + Send + Sync + 'a,
) -> Result<ComputedTable<'a>> {
    let n = ground_truth.classes.len();
    table(name, crowd.members.len() * n * n, move |rows| {
        let cells = rows.clone().map(|row| of(row / (n * n)).row(row / n % n)[row % n]);
        Ok(vec![
            ("annotator_id", names(crowd, rows.clone().map(|row| row / (n * n)))),
            ("class", ground_truth.labels(rows.clone().map(|row| (row / n % n) as u32))?),
            ("label", ground_truth.labels(rows.clone().map(|row| (row % n) as u32))?),
            ("probability", Arc::new(cells.collect::<Float64Array>())),
        ])
    })
}

fn common_confusion<'a>(
    ground_truth: &'a GroundTruth,
    common: &'a ConfusionMatrix,
) -> Result<ComputedTable<'a>> {
    let n = ground_truth.classes.len();
    table("common_confusion", n * n, move |rows| {
        let cells = rows.clone().map(|row| common.row(row / n)[row % n]);
        Ok(vec![
            ("class", ground_truth.labels(rows.clone().map(|row| (row / n) as u32))?),
            ("label", ground_truth.labels(rows.clone().map(|row| (row % n) as u32))?),
            ("probability", Arc::new(cells.collect::<Float64Array>())),
        ])
    })
}

fn annotators(crowd: &SimulatedCrowd) -> Result<ComputedTable<'_>> {
    table("annotators", crowd.members.len(), move |rows| {
        let members = &crowd.members[rows.clone()];
        let accuracy = members.iter().map(|m| m.confusion.accuracy(&crowd.shares));
        Ok(vec![
            ("annotator_id", names(crowd, rows)),
            ("type", text(members.iter().map(|m| m.text(crowd.members.len())))),
            (
                "group",
                Arc::new(
                    members.iter().map(|m| i64::try_from(m.group).ok()).collect::<Int64Array>(),
                ),
            ),
            ("expected_accuracy", Arc::new(accuracy.collect::<Float64Array>())),
        ])
    })
}

fn sources<'a>(
    ground_truth: &'a GroundTruth,
    crowd: &'a SimulatedCrowd,
) -> Result<ComputedTable<'a>> {
    table("sources_of_noise", crowd.sources.len(), move |rows| {
        let (annotations, origins) = (&crowd.annotations[rows.clone()], &crowd.sources[rows]);
        let origin = |is_common: bool| if is_common { "common" } else { "individual" };
        Ok(vec![
            ("instance_id", ground_truth.ids(annotations.iter().map(|a| a.instance))?),
            ("annotator_id", names(crowd, annotations.iter().map(|a| a.annotator as usize))),
            ("source", text(origins.iter().map(|(is_common, _)| origin(*is_common).to_owned()))),
            ("share", Arc::new(origins.iter().map(|(_, share)| *share).collect::<Float64Array>())),
        ])
    })
}

/// The gold classes, in the form of `source.gold`.
fn gold<'a>(ground_truth: &'a GroundTruth, crowd: &'a SimulatedCrowd) -> Result<ComputedTable<'a>> {
    table("gold", crowd.gold.len(), move |rows| {
        let gold = &crowd.gold[rows];
        Ok(vec![
            ("instance_id", ground_truth.ids(gold.iter().map(|(i, _)| *i))?),
            (
                "class",
                ground_truth.labels(gold.iter().map(|(i, _)| ground_truth.class[*i as usize]))?,
            ),
            ("role", text(gold.iter().map(|(_, role)| role.word().to_owned()))),
        ])
    })
}

/// Features of the annotators, in the form of `source.annotator_features`.
fn annotator_features(crowd: &SimulatedCrowd) -> Result<ComputedTable<'_>> {
    table("annotator_features", crowd.features.len(), move |rows| {
        Ok(vec![
            ("annotator_id", names(crowd, rows.clone())),
            ("features", lists(crowd.features[rows].iter().cloned())),
        ])
    })
}

fn features(ground_truth: &GroundTruth) -> Result<ComputedTable<'_>> {
    table("features", ground_truth.class.len(), move |rows| {
        Ok(vec![
            ("instance_id", ground_truth.ids(rows.clone().map(|i| i as u32))?),
            ("features", lists(rows.map(|i| ground_truth.features(i)))),
        ])
    })
}

/// The recipe's settings, from which the crowd can be drawn again.
fn settings(recipe: &[(String, String)]) -> Result<ComputedTable<'_>> {
    table("recipe", recipe.len(), move |rows| {
        let rows = &recipe[rows];
        Ok(vec![
            ("name", text(rows.iter().map(|(name, _)| name.clone()))),
            ("value", text(rows.iter().map(|(_, value)| value.clone()))),
        ])
    })
}

fn names(crowd: &SimulatedCrowd, annotators: impl Iterator<Item = usize>) -> ArrayRef {
    text(annotators.map(|r| crowd.ids[r].clone()))
}

fn lists(rows: impl Iterator<Item = Vec<f32>>) -> ArrayRef {
    let item = Field::new_list_field(DataType::Float32, false);
    let mut lists = ListBuilder::new(Float32Builder::new()).with_field(item);
    for row in rows {
        lists.values().append_slice(&row);
        lists.append(true);
    }
    Arc::new(lists.finish())
}

fn text(values: impl Iterator<Item = String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}
