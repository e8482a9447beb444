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
    /// No instance has annotations of two annotators.
    OneAnnotationEach,
    /// All annotations are of one annotator.
    OneAnnotator,
    /// Columns of features are not read, because they number the rows.
    RowNumbers,
    /// Ids are numbers with an exponent, as a spreadsheet rounds them, or floats too large to be exact.
    RoundedIds,
    /// Ids or labels differ only in case, in outer spaces or in the spelling of a number.
    SeveralSpellings,
    /// Ids or classes of one table are not in the table that should have them.
    TablesPartlyMatch,
    /// Pairs of annotations agree no better than random labels would.
    AgreementByChance,
    /// At least 1 % of the labels are ones that no annotator of the instance gave.
    LabelsNobodyGave,
    /// At least 1 % of the labels contradict all of two or more annotators.
    AgainstUnanimousVote,
    /// More than a quarter of the labels differ from the majority vote.
    DiffersFromVote,
    /// On gold that scores, the majority vote is right more often by over a point.
    WorseThanVote,
    /// Annotators err together, so that confidences are not to be believed.
    DependentAnnotators,
    /// Two annotators give nearly the same labels, beyond what their skills explain.
    NearCopies,
    /// Half of the annotators have too few annotations for their confusion matrices.
    FewAnnotations,
    /// Over a quarter of the annotations are by annotators with a single one.
    OneTimeAnnotators,
    /// The crowd is not one that the kind of model is meant for.
    NotMeantFor,
}

impl WarningCode {
    /// Every code, in the order of the documentation.
    pub const ALL: &[Self] = &[
        Self::NotConverged,
        Self::ColumnsExchanged,
        Self::EqualNumbers,
        Self::LabelsNearlyDistinct,
        Self::MissingValueWords,
        Self::OneAnnotationEach,
        Self::OneAnnotator,
        Self::RowNumbers,
        Self::RoundedIds,
        Self::SeveralSpellings,
        Self::TablesPartlyMatch,
        Self::AgreementByChance,
        Self::LabelsNobodyGave,
        Self::AgainstUnanimousVote,
        Self::DiffersFromVote,
        Self::WorseThanVote,
        Self::DependentAnnotators,
        Self::NearCopies,
        Self::FewAnnotations,
        Self::OneTimeAnnotators,
        Self::NotMeantFor,
    ];

    /// The code as it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// The names of the codes of warnings, each once, in the order of the documentation.
    #[must_use]
    pub fn names_in(warnings: &[String]) -> Vec<&'static str> {
        let has = |code: &str| warnings.iter().any(|w| w.ends_with(&format!("[{code}]")));
        Self::ALL.iter().map(|code| code.name()).filter(|code| has(code)).collect()
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
            Self::OneAnnotationEach => {
                ("one_annotation_each", "no instance has annotations of two annotators")
            }
            Self::OneAnnotator => ("one_annotator", "all annotations are of one annotator"),
            Self::RowNumbers => {
                ("row_numbers", "columns of features are not read, because they number the rows")
            }
            Self::RoundedIds => {
                ("rounded_ids", "ids are numbers that a spreadsheet or a float has rounded")
            }
            Self::SeveralSpellings => (
                "several_spellings",
                "ids or labels differ only in case, in outer spaces or in the spelling of a number",
            ),
            Self::TablesPartlyMatch => (
                "tables_partly_match",
                "ids or classes of one table are not in the table that should have them",
            ),
            Self::AgreementByChance => (
                "agreement_by_chance",
                "pairs of annotations agree no better than random labels would",
            ),
            Self::LabelsNobodyGave => (
                "labels_nobody_gave",
                "at least 1 % of the labels are ones that no annotator of the instance gave",
            ),
            Self::AgainstUnanimousVote => (
                "against_unanimous_vote",
                "at least 1 % of the labels contradict all of two or more annotators",
            ),
            Self::DiffersFromVote => (
                "differs_from_vote",
                "more than a quarter of the labels differ from the majority vote",
            ),
            Self::WorseThanVote => (
                "worse_than_vote",
                "on gold that scores, the majority vote is right more often by over a point",
            ),
            Self::DependentAnnotators => (
                "dependent_annotators",
                "annotators err together, so that confidences are not to be believed",
            ),
            Self::NearCopies => (
                "near_copies",
                "two annotators give nearly the same labels, beyond what their skills explain",
            ),
            Self::FewAnnotations => (
                "few_annotations",
                "half of the annotators have too few annotations for their confusion matrices",
            ),
            Self::OneTimeAnnotators => (
                "one_time_annotators",
                "over a quarter of the annotations are by annotators with a single one",
            ),
            Self::NotMeantFor => {
                ("not_meant_for", "the crowd is not one that the kind of model is meant for")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_of_several_warnings_is_named_once() {
        let of_question = ["few data [one_time_annotators]", "chance [agreement_by_chance]"];
        let all = [of_question, of_question, ["labels [a, b]", "none"]].concat();
        let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        assert_eq!(WarningCode::names_in(&all), ["agreement_by_chance", "one_time_annotators"]);
        assert_eq!(WarningCode::names_in(&all[4..]), [""; 0]);
    }
}
