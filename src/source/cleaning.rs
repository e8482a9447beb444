//! The user's rules for text values, `source.null_values` and `source.normalise`: the same for every relation, so that tables
//! still meet.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, Scalar, StringArray};
use arrow::compute::kernels::cmp::eq;
use arrow::compute::{cast, filter, is_not_null, nullif};
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Column, Result as DataFusionResult};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, cast as cast_to,
};
use datafusion::prelude::DataFrame;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::typed::views::value_type;
use crate::error::Result;

/// Words of programs for a value that is missing, in lower case.
const MISSING_WORDS: [&str; 13] =
    ["", "na", "n/a", "#n/a", "<na>", "nan", "-nan", "null", "none", "nil", "-", ".", "?"];

/// The length of the longest of these words.
pub(crate) const LONGEST_MISSING_WORD: usize = 4;

/// Whether a text is a word for a value that is missing, in any case.
pub(crate) fn is_missing_word(text: &str) -> bool {
    text.len() <= LONGEST_MISSING_WORD
        && MISSING_WORDS.iter().any(|word| word.eq_ignore_ascii_case(text))
}

/// A step that makes spellings of one value alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normalisation {
    /// Removes spaces at both ends.
    Trim,
    /// Makes all letters lower case.
    Lower,
}

/// What is done with the text of ids, labels, classes and questions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Cleaning {
    /// Words that stand for a missing value, as they are in the files or as they are after `normalise`.
    pub null_values: Vec<String>,
    /// The steps, in any order.
    pub normalise: Vec<Normalisation>,
}

/// The columns of the contract that hold ids or labels.
const CLEANED: [&str; 5] = ["instance_id", "annotator_id", "label", "class", "question"];

impl Cleaning {
    /// Whether nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.null_values.is_empty() && self.normalise.is_empty()
    }

    /// A text after the steps; `None` where it stands for a missing value.
    #[must_use]
    pub fn value(&self, text: &str) -> Option<String> {
        let normal = self.normalised(text);
        let is_null = self.null_values.iter().any(|word| *word == text || *word == normal);
        (!is_null).then_some(normal)
    }

    /// A text after the steps.
    #[must_use]
    pub fn normalised(&self, text: &str) -> String {
        let has = |step| self.normalise.contains(&step);
        let text = if has(Normalisation::Trim) { text.trim() } else { text };
        if has(Normalisation::Lower) { text.to_lowercase() } else { text.to_owned() }
    }

    /// The relation with its text of ids and labels cleaned. A column of weights that is text, because of the words in it,
    /// becomes one of numbers. Of columns of numbers and of other types, values that are equal to a word become null.
    ///
    /// # Errors
    /// When the query cannot be planned.
    pub fn apply(&self, frame: DataFrame) -> Result<DataFrame> {
        if self.is_empty() {
            return Ok(frame);
        }
        let function = ScalarUDF::from(CleanText {
            cleaning: self.clone(),
            signature: Signature::any(1, Volatility::Immutable),
        });
        let columns = frame.schema().fields().iter().map(|field| {
            let name = field.name().as_str();
            let column = Expr::Column(Column::new_unqualified(name));
            if !value_type(field.data_type()).is_string() {
                let is_cleaned = CLEANED.contains(&name) || name == "weight";
                let nulls = self.nulls_of(value_type(field.data_type()));
                let is_changed = is_cleaned && nulls.is_some();
                return if is_changed { function.call(vec![column]).alias(name) } else { column };
            }
            let cleaned = |column: Expr| function.call(vec![column]);
            match name {
                "weight" if !self.null_values.is_empty() => {
                    cast_to(cleaned(column), DataType::Float64).alias(name)
                }
                _ if CLEANED.contains(&name) => cleaned(column).alias(name),
                _ => column,
            }
        });
        let columns: Vec<Expr> = columns.collect();
        Ok(frame.select(columns)?)
    }
}

impl Cleaning {
    /// The null values of a type that is not text; `None` where no word is one.
    fn nulls_of(&self, data_type: &DataType) -> Option<ArrayRef> {
        // A cast makes `no` false.
        if *data_type == DataType::Boolean {
            return None;
        }
        let words: ArrayRef = Arc::new(StringArray::from(self.null_values.clone()));
        // Of words that are no values of the type, a cast makes nulls.
        let values = cast(&words, data_type).ok()?;
        let valid = is_not_null(&values).ok()?;
        filter(&values, &valid).ok().filter(|values| !values.is_empty())
    }
}

/// [`Cleaning::value`] as a function of a query.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CleanText {
    cleaning: Cleaning,
    signature: Signature,
}

impl ScalarUDFImpl for CleanText {
    fn name(&self) -> &'static str {
        "clean_text"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> DataFusionResult<DataType> {
        Ok(types.first().map_or(DataType::Utf8, |own| value_type(own).clone()))
    }

    /// The type without its dictionary; the marks of the field stay, such as that of a format without types.
    fn return_field_from_args(&self, args: ReturnFieldArgs) -> DataFusionResult<FieldRef> {
        let own = args.arg_fields[0].as_ref().clone();
        let data_type = value_type(own.data_type()).clone();
        Ok(Arc::new(own.with_data_type(data_type).with_nullable(true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> DataFusionResult<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let wanted = value_type(arrays[0].data_type()).clone();
        if !wanted.is_string() {
            let mut values = cast(&arrays[0], &wanted)?;
            if let Some(nulls) = self.cleaning.nulls_of(&wanted) {
                for n in 0..nulls.len() {
                    let null = Scalar::new(nulls.slice(n, 1));
                    values = nullif(&values, &eq(&values, &null)?)?;
                }
            }
            return Ok(ColumnarValue::Array(values));
        }
        let texts = cast(&arrays[0], &DataType::LargeUtf8)?;
        let texts = texts.as_string::<i64>().iter();
        let cleaned = texts.map(|text| text.and_then(|text| self.cleaning.value(text)));
        let cleaned: ArrayRef = Arc::new(cleaned.collect::<LargeStringArray>());
        Ok(ColumnarValue::Array(cast(&cleaned, &wanted)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_null_as_it_stands_and_after_the_steps() {
        let cleaning = Cleaning {
            null_values: vec!["NA".to_owned(), "none".to_owned(), String::new()],
            normalise: vec![Normalisation::Lower, Normalisation::Trim],
        };
        let value = |text: &str| cleaning.value(text);
        for null in ["NA", " None ", "NONE", "", "  "] {
            assert_eq!(value(null), None, "{null:?}");
        }
        assert_eq!(value(" Pos\u{a0}").as_deref(), Some("pos"));
        assert_eq!(value("na").as_deref(), Some("na"));
    }
}
