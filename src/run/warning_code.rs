//! The stable codes of warnings about what the data cannot support.

/// Names a warning for programs: its text may change, its code does not. A message ends with it in brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WarningCode {
    /// The iterations ran out before the objective converged.
    NotConverged,
    /// There are many more annotators than instances: their columns may be exchanged.
    ColumnsExchanged,
    /// Ids or labels that are text were joined, because they are equal numbers.
    EqualNumbers,
    /// Most rows have a label of their own: the label may be a key.
    LabelsNearlyDistinct,
    /// Ids or labels are words for a missing value.
    MissingValueWords,
    /// All annotations are of one annotator.
    OneAnnotator,
    /// Columns of features are not read, because they hold the row numbers of pandas.
    RowNumbers,
    /// Ids are numbers with an exponent, as a spreadsheet rounds them.
    RoundedIds,
    /// Ids or labels differ only in case, in outer spaces or in the spelling of a number.
    SeveralSpellings,
    /// Ids or classes of one table are not in the table that should have them.
    TablesPartlyMatch,
}

impl WarningCode {
    /// Every code, in the order of the documentation.
    pub const ALL: &[Self] = &[
        Self::NotConverged,
        Self::ColumnsExchanged,
        Self::EqualNumbers,
        Self::LabelsNearlyDistinct,
        Self::MissingValueWords,
        Self::OneAnnotator,
        Self::RowNumbers,
        Self::RoundedIds,
        Self::SeveralSpellings,
        Self::TablesPartlyMatch,
    ];

    /// The code as it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// When a run has this warning.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        self.entry().1
    }

    fn entry(self) -> (&'static str, &'static str) {
        match self {
            Self::NotConverged => {
                ("not_converged", "the iterations ran out before the objective converged")
            }
            Self::ColumnsExchanged => (
                "columns_exchanged",
                "there are many more annotators than instances: their columns may be exchanged",
            ),
            Self::EqualNumbers => (
                "equal_numbers",
                "ids or labels that are text were joined, because they are equal numbers",
            ),
            Self::LabelsNearlyDistinct => (
                "labels_nearly_distinct",
                "most rows have a label of their own: the label may be a key",
            ),
            Self::MissingValueWords => {
                ("missing_value_words", "ids or labels are words for a missing value")
            }
            Self::OneAnnotator => ("one_annotator", "all annotations are of one annotator"),
            Self::RowNumbers => (
                "row_numbers",
                "columns of features are not read, because they hold the row numbers of pandas",
            ),
            Self::RoundedIds => {
                ("rounded_ids", "ids are numbers with an exponent, as a spreadsheet rounds them")
            }
            Self::SeveralSpellings => (
                "several_spellings",
                "ids or labels differ only in case, in outer spaces or in the spelling of a number",
            ),
            Self::TablesPartlyMatch => (
                "tables_partly_match",
                "ids or classes of one table are not in the table that should have them",
            ),
        }
    }
}
