//! The labels of a question, which of them are classes, and their order.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field};
use arrow::util::display::array_value_to_string;

use super::collect::spellings::DataWarning;
use crate::error::{Error, Overlap, Problem, Result, offenders};
use crate::frame::frame_spec::FrameSpec;
use crate::frame::ids::exact_text::cast_exact_text;
use crate::frame::ids::{Ids, Interner, NULL};
use crate::job_context::WarningCode;
use crate::source::{Scalar, value_type};

/// The label axis: classes first, then labels that are not a class.
pub(super) struct LabelAxis {
    /// All labels in their final order.
    pub(super) labels: Ids,
    /// How many of them are classes.
    pub(super) n: usize,
    /// Provisional number to final number, [`NULL`] where the label is unknown.
    pub(super) rank: Vec<u32>,
    /// All labels by provisional number, for messages.
    arrived: ArrayRef,
}

impl LabelAxis {
    /// The listed classes in their order; without a list, all used labels and the classes of `gold`, sorted. `gold` is
    /// without gold that only scores.
    pub(super) fn resolve(
        mut interner: Interner,
        spec: &FrameSpec,
        used: &[bool],
        gold: impl Iterator<Item = u32>,
    ) -> Result<Self> {
        let ListedLabels { classes: listed, extra } = ListedLabels::intern(&mut interner, spec)?;
        let total = interner.len();
        let mut occurring = used.to_vec();
        occurring.resize(total, false);
        gold.filter(|class| *class != NULL).for_each(|class| occurring[class as usize] = true);
        let occurs = |n: u32| occurring[n as usize];
        let is_extra: HashSet<u32> = extra.iter().copied().collect();
        // A value that is not a label of this run, such as a class of gold for scores, must not affect type or order.
        let mut stays = if listed.is_some() { vec![false; total] } else { occurring.clone() };
        extra.iter().chain(listed.iter().flatten()).for_each(|n| stays[*n as usize] = true);
        let arrived = interner.shown_values()?;
        let (all, sorted_place) = interner.finish(|n| stays[n as usize])?;
        let mut arrival: Vec<u32> = (0..total as u32).collect();
        arrival.sort_unstable_by_key(|n| sorted_place[*n as usize]);
        let classes: Vec<u32> = listed.unwrap_or_else(|| {
            arrival.iter().copied().filter(|n| occurs(*n) && !is_extra.contains(n)).collect()
        });
        let mut rank = vec![NULL; total];
        let order = classes.iter().chain(&extra);
        order.clone().enumerate().for_each(|(position, n)| rank[*n as usize] = position as u32);
        let labels = all.rows(order.map(|n| Some(sorted_place[*n as usize])))?;
        Ok(Self { labels: all.reordered(labels), n: classes.len(), rank, arrived })
    }

    /// The labels that annotators gave and the listed ones.
    pub(super) fn overlap(&self, used: &[bool]) -> Overlap {
        let given = || (0..used.len()).filter(|n| used[*n]);
        let unlisted = given().filter(|n| self.rank[*n] == NULL).map(|n| self.text(n as u32));
        let listed = (0..self.labels.len()).map(|n| self.labels.text(n));
        Overlap::new(
            "label",
            ("the annotations", given().count(), unlisted.collect()),
            ("frame.classes", self.labels.len(), listed),
        )
        .advise("list them in frame.classes, or in frame.extra_labels those that are no class; or is it the right column?")
    }

    /// The warning that annotators gave extra labels alone, of which no instance gets a class.
    pub(super) fn without_classes(&self, used: &[bool]) -> Option<DataWarning> {
        let mut ranks = (0..used.len()).filter(|n| used[*n]).map(|n| self.rank[n]).peekable();
        let is_extra = |rank: u32| rank != NULL && rank as usize >= self.n;
        (ranks.peek().is_some() && ranks.all(is_extra)).then(|| {
            let text = "every label of the annotations is in frame.extra_labels, and none in frame.classes: no instance gets a \
                        label";
            (WarningCode::TablesPartlyMatch, text.to_owned())
        })
    }

    /// The label with this provisional number, as text.
    pub(super) fn text(&self, number: u32) -> String {
        array_value_to_string(&self.arrived, number as usize).unwrap_or_default()
    }
}

/// The largest number of labels of a question. ImageNet-21k, the largest vocabulary from which people choose one word,
/// has 21 841; one matrix of this many classes and labels takes 8 GiB.
pub(crate) const MAX_LABELS: usize = 1 << 15;

pub(super) fn no_class() -> Error {
    Error::data("nobody chose a class: every label is one of frame.extra_labels")
        .at("frame.extra_labels")
        .help("list the classes in frame.classes, or take some words out of frame.extra_labels")
}

pub(super) fn too_many_labels(n: usize) -> Error {
    Error::data(format!("{n} distinct labels in `label`: is this a label column?"))
        .at("source.annotations")
        .found(format!("more than {MAX_LABELS}, gold's classes included"))
        .help("map the column that holds the answers in source.columns.label, or list the classes in frame.classes")
}

/// The listed classes and extra labels, by provisional number, in their order.
struct ListedLabels {
    classes: Option<Vec<u32>>,
    extra: Vec<u32>,
}

impl ListedLabels {
    /// Numbers the listed values.
    ///
    /// # Errors
    /// All problems of both lists at once. Which values are equal depends on the type of the labels: as integers, 1 and
    /// "01" are.
    fn intern(interner: &mut Interner, spec: &FrameSpec) -> Result<Self> {
        let (classes, extra) = (spec.classes.as_deref().unwrap_or_default(), &spec.extra_labels);
        if classes.len() + extra.len() > MAX_LABELS {
            return Err(Error::spec("more labels are listed than a question may have")
                .at("frame.classes")
                .found(format!("{}, and {} in frame.extra_labels", classes.len(), extra.len()))
                .help(format!("list up to {MAX_LABELS}")));
        }
        let mut problems = Vec::new();
        let numbers = intern_list(interner, classes, "classes", &mut problems)?;
        let extra_numbers = intern_list(interner, extra, "extra_labels", &mut problems)?;
        let is_extra: HashSet<u32> = extra_numbers.iter().copied().filter(|n| *n != NULL).collect();
        let both = numbers.iter().zip(classes).filter(|(n, _)| is_extra.contains(n));
        let both: Vec<&Scalar> = both.map(|(_, scalar)| scalar).collect();
        if !both.is_empty() {
            let problem = Problem::new("a label cannot be a class and no class");
            let found = format!("{} in both lists", offenders(both));
            problems.push(problem.at("frame.extra_labels").found(found));
        }
        if problems.is_empty() {
            Ok(Self { classes: spec.classes.is_some().then_some(numbers), extra: extra_numbers })
        } else {
            Err(Error::spec_problems(problems))
        }
    }
}

/// The provisional numbers of all listed labels.
///
/// # Errors
/// All problems of both lists at once.
pub(super) fn intern_listed(interner: &mut Interner, spec: &FrameSpec) -> Result<Vec<u32>> {
    let ListedLabels { classes, extra } = ListedLabels::intern(interner, spec)?;
    Ok(classes.into_iter().flatten().chain(extra).collect())
}

/// Checks the lists of labels before any row is read, given the column of the labels.
///
/// # Errors
/// All their problems at once.
pub(super) fn check_lists(labels: &Field, spec: &FrameSpec) -> Result<()> {
    ListedLabels::intern(&mut Interner::new(labels), spec).map(|_| ())
}

/// The provisional numbers of the listed values, [`NULL`] for one that is not a value of the labels' type.
fn intern_list(
    interner: &mut Interner,
    list: &[Scalar],
    key: &str,
    problems: &mut Vec<Problem>,
) -> Result<Vec<u32>> {
    let data_type = interner.data_type().clone();
    if value_type(&data_type).is_binary() && !list.is_empty() {
        let problem = Problem::new("labels of bytes cannot be listed").at(format!("frame.{key}"));
        problems.push(problem.found(format!("labels of type {data_type}")).help(
            "leave the list out, or make the labels text in source.sql.annotations, such as encode(label, 'hex')",
        ));
        return Ok(vec![NULL; list.len()]);
    }
    let (mut numbers, mut seen) = (Vec::with_capacity(list.len()), HashSet::new());
    let (mut others, mut twice) = (Vec::new(), Vec::new());
    for (i, scalar) in list.iter().enumerate() {
        match of_type(scalar, &data_type) {
            Some(value) => interner.intern(&value, &mut numbers)?,
            None => numbers.push(NULL),
        }
        match numbers[i] {
            NULL => others.push((i, scalar)),
            number if !seen.insert(number) => twice.push((i, scalar)),
            _ => {}
        }
    }
    let problem = |what: &str, of: &[(usize, &Scalar)], more: &str| {
        let (first, _) = of.first()?;
        let found = format!("{}{more}", offenders(of.iter().map(|(_, scalar)| scalar)));
        Some(Problem::new(what).at(format!("frame.{key}[{first}]")).found(found))
    };
    let labels = format!(", while labels are {data_type}");
    problems.extend(problem("not a value of the labels' type", &others, &labels));
    problems.extend(problem("a value is listed twice", &twice, ""));
    Ok(numbers)
}

/// A scalar of the pipeline file as an array of length 1 of the labels' type; `None` where the cast changes the value.
fn of_type(scalar: &Scalar, data_type: &DataType) -> Option<ArrayRef> {
    let plain: ArrayRef = match scalar {
        Scalar::Bool(v) => Arc::new(BooleanArray::from(vec![*v])),
        Scalar::Int(v) => Arc::new(Int64Array::from(vec![*v])),
        // A cast of the float would round digits of it that the type does not have.
        Scalar::Float(v) if data_type.is_decimal() => {
            Arc::new(StringArray::from(vec![v.to_string()]))
        }
        Scalar::Float(v) => Arc::new(Float64Array::from(vec![*v])),
        Scalar::Text(v) => Arc::new(StringArray::from(vec![v.as_str()])),
    };
    let array = match plain.data_type() {
        DataType::Utf8 => cast_exact_text(&plain, data_type).ok()?,
        _ => cast(&plain, data_type).ok()?,
    };
    let is_same = match scalar {
        Scalar::Bool(_) => !data_type.is_numeric(),
        // Floats round large integers.
        Scalar::Int(_) if data_type.is_floating() => {
            cast(&array, plain.data_type()).is_ok_and(|again| again.as_ref() == plain.as_ref())
        }
        Scalar::Int(_) => *data_type != DataType::Boolean,
        Scalar::Float(v) => {
            *data_type != DataType::Boolean && (!data_type.is_integer() || v.fract() == 0.0)
        }
        Scalar::Text(_) => true,
    };
    let array = concat(&[array.as_ref()]).ok()?;
    (is_same && array.null_count() == 0).then_some(array)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_value_is_a_label_where_it_stays_what_it_is() {
        use DataType::{Boolean, Date32, Decimal128, Float32, Float64, Int64, UInt8, Utf8};
        let fits = |scalar: Scalar, data_type: &DataType| of_type(&scalar, data_type).is_some();
        for (scalar, types, others) in [
            (Scalar::Bool(true), vec![Boolean, Utf8], vec![Int64, UInt8, Float64]),
            (Scalar::Int(1), vec![Int64, UInt8, Float32, Float64, Utf8], vec![Boolean]),
            (Scalar::Int(-1), vec![Int64, Float64], vec![UInt8]),
            (Scalar::Int((1 << 24) + 1), vec![Int64, Float64], vec![Float32]),
            (Scalar::Int((1 << 53) + 1), vec![Int64, Utf8], vec![Float64]),
            (Scalar::Int(i64::MAX), vec![Int64, Utf8], vec![Float32, Float64]),
            (Scalar::Int(i64::MIN), vec![Int64, Float32, Float64], vec![UInt8]),
            (Scalar::Float(0.9), vec![Float64, Float32, Utf8], vec![Int64, Boolean]),
            (Scalar::Float(2.0), vec![Float64, Int64, Decimal128(10, 2)], vec![Boolean]),
            (Scalar::Float(0.01), vec![Decimal128(10, 2)], vec![Decimal128(10, 1)]),
            (Scalar::Float(0.005), vec![Decimal128(10, 3)], vec![Decimal128(10, 2)]),
            (Scalar::Text("1.004".to_owned()), vec![Decimal128(10, 3)], vec![Decimal128(10, 2)]),
            (Scalar::Text("2020-01-03".to_owned()), vec![Date32, Utf8], vec![Int64]),
            (Scalar::Text("2020-01-03T12:00:00".to_owned()), vec![Utf8], vec![Date32]),
            (Scalar::Text("7".to_owned()), vec![Utf8, Int64], vec![Boolean]),
            (Scalar::Text("x".to_owned()), vec![Utf8], vec![Int64, Float64, Boolean]),
        ] {
            for data_type in types {
                assert!(fits(scalar.clone(), &data_type), "{scalar} {data_type}");
            }
            for data_type in others {
                assert!(!fits(scalar.clone(), &data_type), "{scalar} {data_type}");
            }
        }
    }
}
