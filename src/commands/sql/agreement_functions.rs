//! The statistics of agreement as aggregate functions of queries, such as `fleiss_kappa(instance_id, annotator_id, label)`.
//!
//! They are [`crate::agreement::values`] of the rows of a group: rows with a null are no answers, and repeated rows share one.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{DataFusionError, Result as DataFusionResult, ScalarValue};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

use crate::agreement::{Categories, STATISTICS, values};
use crate::frame::{AnnotationRows, Annotations, Dims, Duplicates};
use crate::job_context::JobContext;

/// Registers a function for each statistic.
pub(super) fn register_agreement(ctx: &SessionContext) {
    for statistic in STATISTICS {
        ctx.register_udaf(AggregateUDF::from(AgreementFunction {
            name: statistic.name,
            signature: Signature::any(3, Volatility::Immutable),
        }));
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AgreementFunction {
    name: &'static str,
    signature: Signature,
}

impl AggregateUDFImpl for AgreementFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> DataFusionResult<DataType> {
        Ok(DataType::Float64)
    }

    fn accumulator(&self, _: AccumulatorArgs) -> DataFusionResult<Box<dyn Accumulator>> {
        Ok(Box::new(Answers { statistic: self.name, ids: Default::default(), rows: Vec::new() }))
    }

    /// The columns of the answers, as lists of text.
    fn state_fields(&self, args: StateFieldsArgs) -> DataFusionResult<Vec<FieldRef>> {
        let field = |column: &str| {
            let name = format!("{}[{column}]", args.name);
            Arc::new(Field::new_list(name, Field::new_list_field(DataType::Utf8, true), true))
        };
        Ok(["instance", "annotator", "label"].map(field).into())
    }
}

/// Distinct texts, numbered as they come.
#[derive(Debug, Default)]
struct TextIds {
    numbers: HashMap<String, u32>,
    bytes: usize,
}

/// The answers of a group.
#[derive(Debug)]
struct Answers {
    statistic: &'static str,
    /// Of instances, annotators and labels.
    ids: [TextIds; 3],
    rows: Vec<[u32; 3]>,
}

impl TextIds {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.numbers.len() as u32;
        self.bytes += 2 * size_of::<String>() + text.len();
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The texts in order, and the place of each number among them.
    fn sorted(&self) -> (Vec<&str>, Vec<u32>) {
        let mut all: Vec<(&str, u32)> = self.numbers.iter().map(|(t, n)| (&**t, *n)).collect();
        all.sort_unstable();
        let mut positions = vec![0; all.len()];
        all.iter()
            .enumerate()
            .for_each(|(position, (_, n))| positions[*n as usize] = position as u32);
        (all.into_iter().map(|(text, _)| text).collect(), positions)
    }
}

impl Answers {
    fn value(&self) -> Option<f64> {
        let [(instances, of_instance), (annotators, of_annotator), (labels, of_label)] =
            self.ids.each_ref().map(TextIds::sorted);
        let dims = Dims {
            instances: instances.len(),
            annotators: annotators.len(),
            classes: labels.len(),
            labels: labels.len(),
        };
        let column = |column: usize, positions: &[u32]| {
            self.rows.iter().map(|row| positions[row[column] as usize]).collect()
        };
        let rows = AnnotationRows {
            instance: column(0, &of_instance),
            annotator: column(1, &of_annotator),
            label: column(2, &of_label),
            weight: Vec::new(),
        };
        let annotations = Annotations::build(dims, rows, Duplicates::Share).ok()?;
        let labels: Vec<String> = labels.into_iter().map(str::to_owned).collect();
        let categories = Categories::new(&labels, false);
        let all = JobContext::new(0).pool().install(|| values(&annotations, &categories));
        let own = |row: &&crate::agreement::AgreementRow| {
            row.statistic == self.statistic && row.class.is_none()
        };
        all.iter().find(own)?.value
    }
}

impl Accumulator for Answers {
    fn update_batch(&mut self, values: &[ArrayRef]) -> DataFusionResult<()> {
        let texts: Vec<ArrayRef> =
            values.iter().map(|v| cast(v, &DataType::Utf8)).collect::<Result<_, _>>()?;
        let [instances, annotators, labels] = texts.as_slice() else {
            return Err(DataFusionError::Internal("three columns are expected".to_owned()));
        };
        let columns = [instances, annotators, labels].map(AsArray::as_string::<i32>);
        for row in 0..instances.len() {
            if columns.iter().all(|column| column.is_valid(row)) {
                let mut ids = self.ids.iter_mut();
                self.rows.push(
                    columns.map(|column| ids.next().map_or(0, |ids| ids.number(column.value(row)))),
                );
            }
        }
        Ok(())
    }

    fn evaluate(&mut self) -> DataFusionResult<ScalarValue> {
        Ok(ScalarValue::Float64(self.value()))
    }

    fn size(&self) -> usize {
        // The annotations of both views are built from the rows beside them.
        let ids: usize = self.ids.iter().map(|ids| ids.bytes).sum();
        size_of_val(self) + ids + self.rows.capacity() * 4 * size_of::<[u32; 3]>()
    }

    fn state(&mut self) -> DataFusionResult<Vec<ScalarValue>> {
        let list = |column: usize| {
            let mut texts = vec![""; self.ids[column].numbers.len()];
            self.ids[column].numbers.iter().for_each(|(t, n)| texts[*n as usize] = t);
            let rows = self.rows.iter().map(|row| texts[row[column] as usize]);
            let array: ArrayRef = Arc::new(StringArray::from_iter_values(rows));
            SingleRowListArrayBuilder::new(array).build_list_scalar()
        };
        Ok((0..3).map(list).collect())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> DataFusionResult<()> {
        let rows = states.first().map_or(0, Array::len);
        for row in 0..rows {
            let columns: Vec<ArrayRef> =
                states.iter().map(|state| state.as_list::<i32>().value(row)).collect();
            self.update_batch(&columns)?;
        }
        Ok(())
    }
}
