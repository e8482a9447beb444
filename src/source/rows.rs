//! Rows written in the pipeline file itself: small data, and the inputs of a `[[test]]`.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow::datatypes::{Field, Schema};
use arrow::record_batch::RecordBatch;

use super::spec::{InlineRows, Scalar};
use super::{Relation, contract_columns};
use crate::error::{Error, Result};

impl InlineRows {
    /// The rows as one batch with the relation's column names.
    pub(super) fn to_batch(&self, relation: Relation) -> Result<RecordBatch> {
        let contract = contract_columns(relation);
        let least = contract.iter().filter(|c| c.required).count();
        let width = self.0.iter().map(Vec::len).max().unwrap_or(least);
        for (i, row) in self.0.iter().enumerate() {
            if row.len() < least || row.len() != width || width > contract.len() {
                let names: Vec<_> = contract.iter().map(|c| c.name).collect();
                return Err(Error::spec(format!("row {i} has {} values", row.len())).help(
                    format!("write {least} to {} values: {}", contract.len(), names.join(", ")),
                ));
            }
        }
        let arrays: Vec<ArrayRef> = (0..width)
            .map(|c| column(self.0.iter().map(|r| &r[c])).map_err(|e| e.or_at(contract[c].name)))
            .collect::<Result<_>>()?;
        let fields: Vec<Field> = contract
            .iter()
            .zip(&arrays)
            .map(|(c, a)| Field::new(c.name, a.data_type().clone(), true))
            .collect();
        Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?)
    }
}

fn column<'a>(values: impl Iterator<Item = &'a Scalar> + Clone) -> Result<ArrayRef> {
    let mixed = |v: &Scalar| {
        Error::spec("the values of a column must have one type")
            .found(format!("`{v}` among others"))
    };
    macro_rules! collect {
        ($variant:pat => $value:expr, $array:ty) => {
            Arc::new(
                values
                    .map(|v| match v {
                        $variant => Ok(Some($value)),
                        other => Err(mixed(other)),
                    })
                    .collect::<Result<$array>>()?,
            )
        };
    }
    Ok(match values.clone().next() {
        None | Some(Scalar::Text(_)) => collect!(Scalar::Text(t) => t.as_str(), StringArray),
        Some(Scalar::Bool(_)) => collect!(Scalar::Bool(b) => *b, BooleanArray),
        Some(Scalar::Int(_)) if values.clone().all(|v| matches!(v, Scalar::Int(_))) => {
            collect!(Scalar::Int(i) => *i, Int64Array)
        }
        Some(Scalar::Int(_) | Scalar::Float(_)) => {
            let number = |v: &Scalar| match v {
                Scalar::Float(f) => Ok(Some(*f)),
                Scalar::Int(i) if i.unsigned_abs() > 1 << 53 => {
                    Err(Error::spec("the values of a column must have one type")
                        .found(format!("`{i}` among decimals, which no double holds"))
                        .help("write all values of the column as text, or all as integers"))
                }
                Scalar::Int(i) => Ok(Some(*i as f64)),
                other => Err(mixed(other)),
            };
            Arc::new(values.map(number).collect::<Result<Float64Array>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_among_decimals_is_refused_where_a_double_would_round_it() {
        let of = |values: &[Scalar]| column(values.iter());
        assert!(of(&[Scalar::Float(0.5), Scalar::Int(-(1 << 53))]).is_ok());
        assert!(of(&[Scalar::Int(1 << 62), Scalar::Int(i64::MAX)]).is_ok());
        for values in [
            [Scalar::Int((1 << 53) + 1), Scalar::Float(0.5)],
            [Scalar::Float(0.5), Scalar::Int(i64::MIN)],
        ] {
            let error = of(&values).unwrap_err().to_string();
            assert!(error.contains("among decimals"), "{error}");
        }
    }
}
