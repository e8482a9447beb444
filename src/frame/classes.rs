//! Which labels there are, which of them are classes, and in what order.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow::compute::{cast, concat};
use arrow::datatypes::DataType;
use arrow::util::display::array_value_to_string;

use super::FrameSpec;
use super::ids::{Ids, Interner, NULL};
use crate::error::{Error, Result};
use crate::source::Scalar;

/// The label axis: classes first, then labels that are no class.
pub(super) struct LabelAxis {
    /// All labels in their final order.
    pub(super) labels: Ids,
    /// How many of them are classes.
    pub(super) n: usize,
    /// Provisional number to final number, [`NULL`] where the label is unknown.
    pub(super) rank: Vec<u32>,
    /// Every label that came, as it came.
    arrived: ArrayRef,
}

impl LabelAxis {
    /// The listed classes in their order, or else every used label and class of `gold` that
    /// trains, in sorted order.
    pub(super) fn resolve(
        mut interner: Interner,
        spec: &FrameSpec,
        used: &[bool],
        gold: impl Iterator<Item = u32>,
    ) -> Result<Self> {
        let data_type = interner.data_type().clone();
        let extra = intern_list(&mut interner, &spec.extra_labels, &data_type, "extra_labels")?;
        let listed = match &spec.classes {
            Some(list) => Some(intern_list(&mut interner, list, &data_type, "classes")?),
            None => None,
        };
        let total = interner.len();
        let mut occurring = used.to_vec();
        occurring.resize(total, false);
        gold.filter(|class| *class != NULL).for_each(|class| occurring[class as usize] = true);
        let occurs = |n: u32| occurring[n as usize];
        // What is no label of this run, such as a class of gold that only scores, decides neither type nor order.
        let mut stays = if listed.is_some() { vec![false; total] } else { occurring.clone() };
        extra.iter().chain(listed.iter().flatten()).for_each(|n| stays[*n as usize] = true);
        let arrived = interner.values()?;
        let (all, sorted_place) = interner.finish(|n| stays[n as usize])?;
        let mut arrival: Vec<u32> = (0..total as u32).collect();
        arrival.sort_unstable_by_key(|n| sorted_place[*n as usize]);
        let classes: Vec<u32> = listed.unwrap_or_else(|| {
            arrival.iter().copied().filter(|n| occurs(*n) && !extra.contains(n)).collect()
        });
        if let Some(word) = classes.iter().find(|c| extra.contains(c)) {
            return Err(Error::spec("a label cannot be a class and no class")
                .at("frame.extra_labels")
                .found(format!(
                    "`{}` in both lists",
                    all.text(sorted_place[*word as usize] as usize)
                )));
        }
        let mut rank = vec![NULL; total];
        let order = classes.iter().chain(&extra);
        order.clone().enumerate().for_each(|(place, n)| rank[*n as usize] = place as u32);
        let labels = all.rows(order.map(|n| Some(sorted_place[*n as usize])))?;
        Ok(Self { labels: Ids::in_order(labels), n: classes.len(), rank, arrived })
    }

    /// The label with this provisional number, as text.
    pub(super) fn text(&self, number: u32) -> String {
        array_value_to_string(&self.arrived, number as usize).unwrap_or_default()
    }
}

/// Labels that a question may have. The largest vocabulary of which people choose one word, ImageNet-21k, has 21 841; a
/// matrix of this many classes and labels takes 8 GiB already.
pub(crate) const MOST_LABELS: usize = 1 << 15;

pub(super) fn too_many_labels(n: usize) -> Error {
    Error::data(format!("{n} distinct labels in `label`: is this a label column?"))
        .at("source.annotations")
        .found(format!("more than {MOST_LABELS}, gold's classes included"))
        .help("map the column that holds the answers in source.columns.label, or list the classes in frame.classes")
}

/// Numbers of the listed values, in their order.
fn intern_list(
    interner: &mut Interner,
    list: &[Scalar],
    data_type: &DataType,
    key: &str,
) -> Result<Vec<u32>> {
    let mut numbers = Vec::with_capacity(list.len());
    for (i, scalar) in list.iter().enumerate() {
        let value = of_type(scalar, data_type).ok_or_else(|| {
            Error::spec("not a value of the labels' type")
                .at(format!("frame.{key}[{i}]"))
                .found(format!("`{scalar}`, while labels are {data_type}"))
        })?;
        interner.intern(&value, &mut numbers)?;
        if let Some((last, before)) = numbers.split_last()
            && before.contains(last)
        {
            return Err(Error::spec("a value is listed twice")
                .at(format!("frame.{key}[{i}]"))
                .found(format!("`{scalar}`")));
        }
    }
    Ok(numbers)
}

/// A scalar of the file as an array of one, of the labels' own type.
fn of_type(scalar: &Scalar, data_type: &DataType) -> Option<ArrayRef> {
    let plain: ArrayRef = match scalar {
        Scalar::Bool(v) => Arc::new(BooleanArray::from(vec![*v])),
        Scalar::Int(v) => Arc::new(Int64Array::from(vec![*v])),
        Scalar::Float(v) => Arc::new(Float64Array::from(vec![*v])),
        Scalar::Text(v) => Arc::new(StringArray::from(vec![v.as_str()])),
    };
    let array = cast(&plain, data_type).ok()?;
    let array = concat(&[array.as_ref()]).ok()?;
    (array.null_count() == 0).then_some(array)
}
