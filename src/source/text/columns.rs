//! The schema of a table of text files, from what the relation declares and what the files hold.

use std::collections::{BTreeMap, HashSet};

use arrow::datatypes::{DataType, Field, Schema};

use super::column_content::ColumnContent;
use super::inferred::{INFERRED, OF_TIMES, SEPARATOR, WEIGHTS};
use crate::error::{Error, Result, offenders};
use crate::source::listing::format::{Format, INTEGERS, MIXED, UNTYPED};
use crate::source::relation::known_columns::KnownColumns;

/// The content of each column of one file, by name.
pub(super) type SeenColumns = Vec<(String, ColumnContent)>;

impl KnownColumns {
    /// Merges the columns of all files, each given with its file's name, into one schema.
    pub(super) fn schema(&self, format: Format, files: &[(String, SeenColumns)]) -> Result<Schema> {
        let mut names: Vec<&str> = Vec::new();
        let mut kinds: BTreeMap<&str, (&ColumnContent, &str)> = BTreeMap::new();
        let mut merged: BTreeMap<&str, ColumnContent> = BTreeMap::new();
        for (file, columns) in files {
            if format == Format::Csv {
                self.same_header(&files[0], (file, columns))?;
            }
            for (name, kind) in columns {
                let Some(known) = merged.get_mut(name.as_str()) else {
                    names.push(name);
                    kinds.insert(name, (kind, file));
                    merged.insert(name, kind.clone());
                    continue;
                };
                let both = known.clone().and(kind.clone()).ok();
                // A column of numeric features must not silently become text because one file holds text in it.
                let stays = !(self.are_features && self.is_open(name))
                    || [&*known, kind].iter().any(|k| k.is_null())
                    || known.is_numeric() == kind.is_numeric();
                *known = match both {
                    Some(both) if stays && self.type_of(format, name, &both).is_some() => both,
                    _ => {
                        let first = kinds.get(name.as_str()).map_or("", |(_, file)| file);
                        return Err(drift(name, (known, first), (kind, file)));
                    }
                };
            }
        }
        let fields = names.into_iter().map(|name| {
            let kind = &merged[name];
            let data_type = self.type_of(format, name, kind).ok_or_else(|| {
                Error::data(format!("the column `{name}` holds values of several types"))
                    .at(kinds[name].1)
                    .found(kind.words())
                    .help("write it with one type")
            })?;
            let field = Field::new(name, data_type, true);
            let is_untyped = format == Format::Csv && self.ids.iter().any(|id| id == name);
            let is_inferred = format == Format::Csv && self.is_open(name) && !self.are_features;
            let is_mixed =
                self.are_features && self.is_open(name) && kind.has_numbers_among_others();
            let are_integers = format == Format::Csv
                && self.are_features
                && field.data_type().is_floating()
                && kind.data_type() == Some(DataType::Int64);
            // A line of JSON has the type of its numbers; words among them need a closer look.
            let are_weights = self.numbers.iter().any(|n| n == name)
                && (format == Format::Csv || kind.has_numbers_among_others());
            let marks = [
                (is_untyped, UNTYPED),
                (is_inferred, INFERRED),
                (is_inferred && self.times.iter().any(|time| time == name), OF_TIMES),
                (is_mixed, MIXED),
                (are_integers, INTEGERS),
            ];
            let marks = marks.into_iter().filter(|(is_marked, _)| *is_marked);
            let marks = marks.map(|(_, mark)| (mark.to_owned(), "true".to_owned()));
            let words = are_weights.then(|| self.null_values.join(SEPARATOR));
            let words = words.map(|words| (WEIGHTS.to_owned(), words));
            Ok(field.with_metadata(marks.chain(words).collect()))
        });
        Ok(Schema::new(fields.collect::<Result<Vec<_>>>()?))
    }

    /// Checks that the CSV files of a table have the same columns, in any order. Columns that nothing reads may differ.
    fn same_header(&self, first: &(String, SeenColumns), file: (&str, &SeenColumns)) -> Result<()> {
        let missing = |of: &SeenColumns, from: &SeenColumns| -> Vec<String> {
            let has: HashSet<&String> = from.iter().map(|(name, _)| name).collect();
            of.iter().map(|(name, _)| name).filter(|name| !has.contains(name)).cloned().collect()
        };
        let (less, more) = (missing(&first.1, file.1), missing(file.1, &first.1));
        if !less.iter().chain(&more).any(|name| self.may_be_read(name)) {
            return Ok(());
        }
        let part = |what: &str, names: Vec<String>| {
            (!names.is_empty()).then(|| format!("{what} {}", offenders(names)))
        };
        let parts = [part("it lacks", less), part("it alone has", more)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        Err(Error::data("the files of a table have different columns")
            .at(file.0)
            .found(format!("{}, compared with `{}`", parts.join("; "), first.0))
            .help("give the files the same header, in any order; or name those that belong together by a pattern"))
    }

    fn type_of(&self, format: Format, name: &str, kind: &ColumnContent) -> Option<DataType> {
        let has = |names: &[String]| names.iter().any(|n| n == name);
        if format != Format::Csv {
            let are_weights = has(&self.numbers) && kind.has_numbers_among_others();
            return if are_weights { Some(DataType::Float64) } else { kind.data_type() };
        }
        let ColumnContent::Values(seen) = kind else { return None };
        if has(&self.numbers) {
            return Some(DataType::Float64);
        }
        if !self.is_open(name) {
            return Some(DataType::Utf8);
        }
        if self.are_features && seen.is_numeric() {
            return Some(DataType::Float64);
        }
        let seen = if has(&self.times) { seen.of_measures() } else { *seen };
        // All CSV values are text: where no other type holds all of them, text does.
        Some(seen.data_type().unwrap_or(DataType::Utf8))
    }
}

fn drift(
    name: &str,
    (known, first): (&ColumnContent, &str),
    (kind, file): (&ColumnContent, &str),
) -> Error {
    Error::data(format!("the column `{name}` has no one type in all files"))
        .found(format!("{} in `{first}`, {} in `{file}`", known.words(), kind.words()))
        .help("write it with one type in every file")
}
