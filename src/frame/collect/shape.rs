//! Warns of tables whose shape shows that a column is probably the wrong one.

use super::spellings::DataWarning;
use crate::frame::annotations::Dims;
use crate::job_context::WarningCode;

/// The size of a question.
pub(super) struct Shape {
    pub(super) dims: Dims,
    pub(super) annotations: usize,
    /// The number of labels that annotators gave.
    pub(super) given_labels: usize,
    /// Whether no instance has annotations of two annotators.
    pub(super) is_one_each: bool,
}

/// How many more annotators than instances are taken for exchanged columns, the fewest annotators for it, and the fewest
/// annotations of each on average: visitors who annotate once are many too, and no instances.
const EXCHANGED: (usize, usize, usize) = (3, 12, 2);

/// The fewest instances with one annotation each that are taken for rows: a trial may have a handful.
const MANY: usize = 10;

/// The fewest labels that are taken for a key, where most rows have one of their own.
const KEYS: usize = 10;

impl Shape {
    pub(super) fn warnings(&self) -> Vec<DataWarning> {
        let Self {
            dims: Dims { instances, annotators, .. },
            annotations,
            given_labels,
            is_one_each,
        } = *self;
        let mut warnings = Vec::new();
        let (ratio, fewest, each) = EXCHANGED;
        let are_many = annotators >= fewest && annotators >= ratio * instances;
        if are_many && annotations >= each * annotators {
            let text = format!(
                "{instances} instances have {annotators} annotators: are source.columns.instance and \
                 source.columns.annotator exchanged?"
            );
            warnings.push((WarningCode::ColumnsExchanged, text));
        }
        if annotators == 1 && instances > 1 && annotations > 1 {
            let text = format!(
                "one annotator gave all {annotations} annotations: there is nothing to compare them with; is \
                 source.columns.annotator the right column?"
            );
            warnings.push((WarningCode::OneAnnotator, text));
        }
        if is_one_each && annotators > 1 && annotations >= MANY {
            let text = format!(
                "none of {instances} instances has annotations of two annotators: nobody can be compared, and without \
                 features, skills and confidences say nothing; is source.columns.instance the key of the rows?"
            );
            warnings.push((WarningCode::OneAnnotationEach, text));
        }
        if given_labels >= KEYS && 2 * given_labels > annotations {
            let text = format!("{given_labels} classes in {annotations} rows: is the label a key?");
            warnings.push((WarningCode::LabelsNearlyDistinct, text));
        }
        warnings
    }
}
