//! The columns of a relation's table that are known before a file is opened.

use arrow::datatypes::SchemaRef;

use crate::error::{Error, Result};

/// The columns that are known before a file is opened.
#[derive(Debug, Clone, Default)]
pub(in crate::source) struct KnownColumns {
    /// Columns of ids and labels, which are read from CSV as text, so that "007" is not 7.
    pub(in crate::source) ids: Vec<String>,
    /// Columns that hold numbers, whole or not.
    pub(in crate::source) numbers: Vec<String>,
    /// Words that stand for a missing number in these columns.
    pub(in crate::source) null_values: Vec<String>,
    /// Columns of timestamps, or of times in seconds.
    pub(in crate::source) times: Vec<String>,
    /// Columns of the roles of gold.
    pub(in crate::source) roles: Vec<String>,
    /// Whether only the columns above are ever read.
    pub(in crate::source) only_these: bool,
    /// Whether every other column of numbers is a feature.
    pub(in crate::source) are_features: bool,
    /// Columns of the contract: of Parquet and Arrow files, either all have such a column, or none.
    pub(in crate::source) of_contract: Vec<String>,
}

impl KnownColumns {
    /// Whether the type of this CSV column is taken from its values.
    pub(in crate::source) fn is_open(&self, name: &str) -> bool {
        let has = |names: &[String]| names.iter().any(|n| n == name);
        !has(&self.ids) && !has(&self.numbers) && (!self.only_these || has(&self.times))
    }

    /// Whether a query may read this column.
    pub(in crate::source) fn may_be_read(&self, name: &str) -> bool {
        let Self { ids, numbers, times, roles, .. } = self;
        let mut all = [ids, numbers, times, roles].into_iter().flatten();
        !self.only_these || all.any(|known| known == name)
    }

    /// Refuses a column of the contract that only some files have: it would be null in the rows of the others, as if
    /// nobody had given a weight, a role or a question.
    ///
    /// # Errors
    /// When there is such a column; the error names it, a file that has it, and one that lacks it.
    pub(in crate::source) fn refuse_missing_in_some(
        &self,
        files: &[(String, SchemaRef)],
    ) -> Result<()> {
        for column in &self.of_contract {
            let has = |(_, schema): &&(String, SchemaRef)| schema.index_of(column).is_ok();
            let Some((with, _)) = files.iter().find(has) else { continue };
            if let Some((without, _)) = files.iter().find(|file| !has(file)) {
                return Err(Error::data(format!("some files of a table lack the column `{column}`"))
                    .at(without)
                    .found(format!("it is in `{with}`"))
                    .help(
                        "write it in every file or in none; or say in source.sql what stands in its place, as in \
                         coalesce(weight, 1) AS weight",
                    ));
            }
        }
        Ok(())
    }
}
