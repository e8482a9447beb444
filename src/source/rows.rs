//! Rows written in the pipeline file itself: small data, and the inputs of a `[[test]]`.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow::datatypes::{Field, Schema};
use arrow::record_batch::RecordBatch;

use super::spec::{InlineRows, Scalar};
use crate::error::{Error, Result, offenders};
use crate::source::relation::contract::{Relation, contract_columns};

impl InlineRows {
    /// The rows as one batch with the relation's column names; `key` is their key in the pipeline file.
    pub(super) fn to_batch(&self, relation: Relation, key: &str) -> Result<RecordBatch> {
        let contract = contract_columns(relation);
        let least = contract.iter().filter(|c| c.required).count();
        let width = self.0.iter().map(Vec::len).max().unwrap_or(least);
        let names: Vec<_> = contract.iter().map(|c| c.name.to_owned()).collect();
        let most = contract.len();
        if let Some(i) = self.0.iter().position(|row| !(least..=most).contains(&row.len())) {
            return Err(Error::spec(format!("row {i} has {} values", self.0[i].len()))
                .at(format!("{key}[{i}]"))
                .help(format!("write {least} to {most} values: {}", names.join(", "))));
        }
        if let Some(i) = self.0.iter().position(|row| row.len() != width) {
            let longest = self.0.iter().position(|row| row.len() == width).unwrap_or(i);
            return Err(Error::spec("rows differ in length")
                .at(format!("{key}[{i}]"))
                .found(format!("{} values, {width} in row {longest}", self.0[i].len()))
                .help("write as many values in each row: a column is left out of all rows alike"));
        }
        self.batch(&names[..width], key)
    }

    /// Rows of features as one batch: an id, in a column of this name, then columns of numbers.
    pub(super) fn to_features(&self, id: &str, key: &str) -> Result<RecordBatch> {
        let width = self.0.first().map_or(1, Vec::len);
        let is_number = |value: &Scalar| matches!(value, Scalar::Int(_) | Scalar::Float(_));
        let is_usable = |row: &Vec<Scalar>| {
            row.len() > 1 && row.len() == width && row[1..].iter().all(is_number)
        };
        if let Some(i) = self.0.iter().position(|row| !is_usable(row)) {
            return Err(Error::spec("a row of features is an id and numbers, in each row as many")
                .at(format!("{key}[{i}]"))
                .found(offenders(&self.0[i])));
        }
        let numbers = (1..width).map(|n| format!("feature_{n}"));
        self.batch(&std::iter::once(id.to_owned()).chain(numbers).collect::<Vec<_>>(), key)
    }

    /// The columns of these names; each row has as many values.
    fn batch(&self, names: &[String], key: &str) -> Result<RecordBatch> {
        let columns = names.iter().enumerate();
        let arrays = columns.map(|(n, name)| column(name, key, self.0.iter().map(|row| &row[n])));
        let arrays: Vec<ArrayRef> = arrays.collect::<Result<_>>()?;
        let fields = names.iter().zip(&arrays);
        let fields = fields.map(|(name, array)| Field::new(name, array.data_type().clone(), true));
        let schema = Schema::new(fields.collect::<Vec<_>>());
        Ok(RecordBatch::try_new(Arc::new(schema), arrays)?)
    }
}

fn column<'a>(
    name: &str,
    key: &str,
    values: impl Iterator<Item = &'a Scalar> + Clone,
) -> Result<ArrayRef> {
    let mixed = |row: usize, value: &Scalar, others: &str| {
        Error::spec("the values of a column must have one type")
            .at(format!("{key}[{row}]"))
            .found(format!("`{value}` in the column `{name}` among {others}"))
    };
    macro_rules! collect {
        ($variant:pat => $value:expr, $others:literal, $array:ty) => {
            Arc::new(
                values
                    .enumerate()
                    .map(|(row, value)| match value {
                        $variant => Ok(Some($value)),
                        other => Err(mixed(row, other, $others)),
                    })
                    .collect::<Result<$array>>()?,
            )
        };
    }
    Ok(match values.clone().next() {
        None | Some(Scalar::Text(_)) => {
            collect!(Scalar::Text(t) => t.as_str(), "texts", StringArray)
        }
        Some(Scalar::Bool(_)) => collect!(Scalar::Bool(b) => *b, "booleans", BooleanArray),
        Some(Scalar::Int(_)) if values.clone().all(|v| matches!(v, Scalar::Int(_))) => {
            collect!(Scalar::Int(i) => *i, "integers", Int64Array)
        }
        Some(Scalar::Int(_) | Scalar::Float(_)) => {
            let number = |(row, value): (usize, &Scalar)| match value {
                Scalar::Float(f) => Ok(Some(*f)),
                Scalar::Int(i) if i.unsigned_abs() > 1 << 53 => {
                    Err(mixed(row, value, "decimals, which no double holds")
                        .help("write all values of the column as text, or all as integers"))
                }
                Scalar::Int(i) => Ok(Some(*i as f64)),
                other => Err(mixed(row, other, "numbers")),
            };
            Arc::new(values.enumerate().map(number).collect::<Result<Float64Array>>()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_another_length_are_told_from_rows_with_too_few_or_too_many_values() {
        let error = |lengths: &[usize]| {
            let row = |n: &usize| vec![Scalar::Text("x".to_owned()); *n];
            let rows = InlineRows(lengths.iter().map(row).collect());
            let error = rows.to_batch(Relation::Annotations, "source.annotations").unwrap_err();
            assert_eq!(error.exit_code(), 2);
            error.to_string()
        };
        for lengths in [[3, 4, 2], [3, 4, 7]] {
            let error = error(&lengths);
            assert!(error.contains(&format!("row 2 has {} values", lengths[2])), "{error}");
            assert!(error.contains("where: source.annotations[2]\n"), "{error}");
            assert!(error.contains("write 3 to 6 values: instance_id, annotator_id,"), "{error}");
        }
        let error = error(&[3, 3, 4]);
        assert!(error.contains("rows differ in length\n"), "{error}");
        assert!(error.contains("where: source.annotations[0]\n"), "{error}");
        assert!(error.contains("found: 3 values, 4 in row 2\n"), "{error}");
    }

    #[test]
    fn an_integer_among_decimals_is_refused_where_a_double_would_round_it() {
        let of = |values: &[Scalar]| column("label", "source.gold", values.iter());
        assert!(of(&[Scalar::Float(0.5), Scalar::Int(-(1 << 53))]).is_ok());
        assert!(of(&[Scalar::Int(1 << 62), Scalar::Int(i64::MAX)]).is_ok());
        for values in [
            [Scalar::Int((1 << 53) + 1), Scalar::Float(0.5)],
            [Scalar::Float(0.5), Scalar::Int(i64::MIN)],
        ] {
            let error = of(&values).unwrap_err().to_string();
            assert!(error.contains("among decimals"), "{error}");
            assert!(error.contains("where: source.gold["), "{error}");
        }
    }
}
