//! What goes out: the crowd as tables that labelmill reads back.

use std::ops::Range;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, Float32Builder, Float64Array, Int64Array, ListBuilder, RecordBatch, StringArray,
};
use datafusion::arrow::datatypes::{DataType, Field};

use super::confusion::Confusion;
use super::draw::Crowd;
use super::world::World;
use crate::error::Result;

/// The batch of some of a table's rows.
type Batch<'a> = Box<dyn Fn(Range<usize>) -> Result<RecordBatch> + Send + Sync + 'a>;

/// A table that is made as it is written.
pub struct Written<'a> {
    /// Its name.
    pub name: &'static str,
    /// Its rows.
    pub rows: usize,
    /// Some of its rows.
    pub batch: Batch<'a>,
}

fn table<'a>(
    name: &'static str,
    rows: usize,
    columns: impl Fn(Range<usize>) -> Result<Vec<(&'static str, ArrayRef)>> + Send + Sync + 'a,
) -> Written<'a> {
    let batch = move |range: Range<usize>| {
        let columns = columns(range)?.into_iter().map(|(name, array)| (name, array, false));
        Ok(RecordBatch::try_from_iter_with_nullable(columns)?)
    };
    Written { name, rows, batch: Box::new(batch) }
}

/// Every table of a crowd; those of common noise, told classes, described annotators and drawn features where there are
/// any.
pub(super) fn tables<'a>(
    world: &'a World,
    crowd: &'a Crowd,
    recipe: &'a [(String, String)],
) -> Vec<Written<'a>> {
    let mut tables = vec![
        annotations(world, crowd),
        truth(world),
        confusion(world, crowd, "true_confusion", |r| &crowd.members[r].confusion),
        annotators(crowd),
        settings(recipe),
    ];
    if let Some(common) = &crowd.common {
        tables.push(sources(world, crowd));
        tables.push(confusion(world, crowd, "individual_confusion", |r| &crowd.members[r].own));
        tables.push(common_confusion(world, common));
    }
    if !crowd.gold.is_empty() {
        tables.push(gold(world, crowd));
    }
    if !crowd.features.is_empty() {
        tables.push(annotator_features(crowd));
    }
    if world.draws_features {
        tables.push(features(world));
    }
    tables
}

fn annotations<'a>(world: &'a World, crowd: &'a Crowd) -> Written<'a> {
    table("annotations", crowd.annotations.len(), move |rows| {
        let rows = &crowd.annotations[rows];
        Ok(vec![
            ("instance_id", world.ids(rows.iter().map(|a| a.instance))?),
            ("annotator_id", names(crowd, rows.iter().map(|a| a.annotator as usize))),
            ("label", world.labels(rows.iter().map(|a| a.label))?),
        ])
    })
}

fn truth(world: &World) -> Written<'_> {
    table("truth", world.class.len(), move |rows| {
        Ok(vec![
            ("instance_id", world.ids(rows.clone().map(|i| i as u32))?),
            ("class", world.labels(world.class[rows].iter().copied())?),
        ])
    })
}

/// A whole matrix for each annotator.
fn confusion<'a>(
    world: &'a World,
    crowd: &'a Crowd,
    name: &'static str,
    of: impl Fn(usize) -> &'a Confusion + Send + Sync + 'a,
) -> Written<'a> {
    let n = world.classes.len();
    table(name, crowd.members.len() * n * n, move |rows| {
        let cells = rows.clone().map(|row| of(row / (n * n)).row(row / n % n)[row % n]);
        Ok(vec![
            ("annotator_id", names(crowd, rows.clone().map(|row| row / (n * n)))),
            ("class", world.labels(rows.clone().map(|row| (row / n % n) as u32))?),
            ("label", world.labels(rows.clone().map(|row| (row % n) as u32))?),
            ("probability", Arc::new(cells.collect::<Float64Array>())),
        ])
    })
}

fn common_confusion<'a>(world: &'a World, common: &'a Confusion) -> Written<'a> {
    let n = world.classes.len();
    table("common_confusion", n * n, move |rows| {
        let cells = rows.clone().map(|row| common.row(row / n)[row % n]);
        Ok(vec![
            ("class", world.labels(rows.clone().map(|row| (row / n) as u32))?),
            ("label", world.labels(rows.clone().map(|row| (row % n) as u32))?),
            ("probability", Arc::new(cells.collect::<Float64Array>())),
        ])
    })
}

fn annotators(crowd: &Crowd) -> Written<'_> {
    table("annotators", crowd.members.len(), move |rows| {
        let members = &crowd.members[rows.clone()];
        let accuracy = members.iter().map(|m| m.confusion.accuracy(&crowd.shares));
        Ok(vec![
            ("annotator_id", names(crowd, rows)),
            ("type", text(members.iter().map(|m| m.kind.text(crowd.members.len())))),
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

fn sources<'a>(world: &'a World, crowd: &'a Crowd) -> Written<'a> {
    table("sources_of_noise", crowd.sources.len(), move |rows| {
        let (said, origins) = (&crowd.annotations[rows.clone()], &crowd.sources[rows]);
        let origin = |is_common: bool| if is_common { "common" } else { "individual" };
        Ok(vec![
            ("instance_id", world.ids(said.iter().map(|a| a.instance))?),
            ("annotator_id", names(crowd, said.iter().map(|a| a.annotator as usize))),
            ("source", text(origins.iter().map(|(is_common, _)| origin(*is_common).to_owned()))),
            ("share", Arc::new(origins.iter().map(|(_, share)| *share).collect::<Float64Array>())),
        ])
    })
}

/// Told classes as labelmill reads them.
fn gold<'a>(world: &'a World, crowd: &'a Crowd) -> Written<'a> {
    table("gold", crowd.gold.len(), move |rows| {
        let gold = &crowd.gold[rows];
        Ok(vec![
            ("instance_id", world.ids(gold.iter().map(|(i, _)| *i))?),
            ("class", world.labels(gold.iter().map(|(i, _)| world.class[*i as usize]))?),
            ("role", text(gold.iter().map(|(_, role)| role.word().to_owned()))),
        ])
    })
}

/// Features of the annotators as `source.annotator_features` takes them.
fn annotator_features(crowd: &Crowd) -> Written<'_> {
    table("annotator_features", crowd.features.len(), move |rows| {
        Ok(vec![
            ("annotator_id", names(crowd, rows.clone())),
            ("features", lists(crowd.features[rows].iter().cloned())),
        ])
    })
}

fn features(world: &World) -> Written<'_> {
    table("features", world.class.len(), move |rows| {
        Ok(vec![
            ("instance_id", world.ids(rows.clone().map(|i| i as u32))?),
            ("features", lists(rows.map(|i| world.features(i)))),
        ])
    })
}

/// How the crowd was made, so that it can be made again.
fn settings(recipe: &[(String, String)]) -> Written<'_> {
    table("recipe", recipe.len(), move |rows| {
        let rows = &recipe[rows];
        Ok(vec![
            ("name", text(rows.iter().map(|(name, _)| name.clone()))),
            ("value", text(rows.iter().map(|(_, value)| value.clone()))),
        ])
    })
}

fn names(crowd: &Crowd, annotators: impl Iterator<Item = usize>) -> ArrayRef {
    text(annotators.map(|r| crowd.id(r)))
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
