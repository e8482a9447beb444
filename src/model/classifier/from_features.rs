//! Checks that all models that learn from features share: before a fit, and before a saved model predicts.

use serde_json::Value;

use crate::error::{Error, Result, Stage};
use crate::frame::{Annotations, Evidence, Matrix, QuestionFeatures};
use crate::job_context::JobContext;
use crate::model::Spec;
use crate::spec::{Problems, check_schema};

/// The features, which a model of this kind needs.
///
/// # Errors
/// When the question has no features.
pub(in crate::model) fn with_features_of<'a>(
    evidence: Evidence<'a>,
    kind: &str,
) -> Result<&'a QuestionFeatures> {
    evidence.with_features.ok_or_else(|| {
        Error::spec(format!("`{kind}` learns from features"))
            .at("source.features")
            .help("set source.features, or choose a label-only model")
    })
}

/// The error for features of which none belongs to an instance with evidence.
pub(in crate::model) fn no_examples(a: &Annotations) -> Error {
    if !(0..a.dims().instances).any(|i| a.has_evidence(i)) {
        return Error::data("no annotation names a class, and no instance is trusted")
            .at("frame.extra_labels")
            .help("take the words that are classes out of frame.extra_labels");
    }
    Error::data("no annotated instance has features to learn from")
        .at("source.features")
        .help("the ids must be the same as in the annotations")
}

/// The warning that some annotated instances have no features; `None` where all have them. An instance without
/// annotations, such as one whose rows were all rejected, has no label either way.
pub(in crate::model) fn without_features(
    a: &Annotations,
    has_features: impl Fn(usize) -> bool,
) -> Option<String> {
    without(a, "features", has_features)
}

/// As [`without_features`], for another table of the instances.
pub(in crate::model) fn without(
    a: &Annotations,
    table: &str,
    has_features: impl Fn(usize) -> bool,
) -> Option<String> {
    let (mut all, mut without) = (0, 0);
    for i in (0..a.dims().instances).filter(|i| !a.pairs_of_instance(*i).is_empty()) {
        all += 1;
        without += usize::from(!has_features(i));
    }
    (without > 0).then(|| {
        format!(
            "{without} of {all} annotated instances have no {table}: their labels follow from annotations alone"
        )
    })
}

/// Warns of features of annotators that some annotators lack, or that the model of this kind does not read.
pub(in crate::model) fn warn_of_annotator_features(
    kind: &str,
    is_read: bool,
    with_features: &QuestionFeatures,
    job: &mut JobContext,
) {
    let Some((_, rows)) = with_features.annotator_matrix() else { return };
    let without = rows.iter().filter(|row| row.is_none()).count();
    if !is_read {
        job.warn(format!(
            "`{kind}` does not learn from features of annotators: source.annotator_features changes nothing"
        ));
    } else if without > 0 {
        job.warn(format!(
            "{without} of {} annotators have no features: they are treated as the mean of those that have",
            rows.len()
        ));
    }
}

/// The warning for a model that needs a second annotator of an instance to tell the annotators' mistakes from the
/// classifier's; `None` if one has, or there are no annotations. Several annotations of an instance by one annotator count
/// as one.
pub(in crate::model) fn single_annotations(a: &Annotations) -> Option<String> {
    // The columns of one annotator are adjacent.
    let is_of_one = |columns: &[u32]| {
        columns.windows(2).all(|c| a.annotator_of_pair(c[0]) == a.annotator_of_pair(c[1]))
    };
    let is_single =
        !a.is_empty() && (0..a.dims().instances).all(|i| is_of_one(a.pairs_of_instance(i)));
    let warning = "no instance has a second annotator: nothing tells the annotators' mistakes from the classifier's, so \
                   that the posteriors follow the one or the other; `trace_regularised` learns from single annotations";
    is_single.then(|| warning.to_owned())
}

/// The parameters of a saved model, after `change`.
///
/// # Errors
/// When they do not fit the schema, or break a rule of the model.
pub(in crate::model) fn spec_of<S: Spec>(
    parameters: Value,
    change: impl FnOnce(&mut S),
) -> Result<S> {
    let (location, mut problems) = ("model.json: parameters", Problems::default());
    check_schema(&parameters, &schemars::schema_for!(S).to_value(), location, &mut problems);
    let mut spec: S = serde_json::from_value(parameters).map_err(misfit)?;
    change(&mut spec);
    spec.check(location, &mut problems);
    problems.into_result().map_err(|mut e| {
        e.stage = Stage::Data;
        e
    })?;
    Ok(spec)
}

/// The sizes of a saved model.
///
/// # Errors
/// When they are not in the form of `S`.
pub(in crate::model) fn sizes_of<S: serde::de::DeserializeOwned>(sizes: Value) -> Result<S> {
    serde_json::from_value(sizes).map_err(misfit)
}

/// Refuses a device of `predict` other than the CPU, which computes models without networks.
///
/// # Errors
/// When the name is neither `auto` nor `cpu`.
pub(in crate::model) fn check_cpu(device: Option<&str>, kind: &str) -> Result<()> {
    match device {
        None | Some("auto" | "cpu") => Ok(()),
        Some(other) => Err(Error::spec(format!("`{kind}` computes on the CPU only"))
            .at("--device")
            .found(format!("`{other}`"))
            .help("choose \"auto\" or \"cpu\"")),
    }
}

/// Refuses features that do not have `width` numbers a row.
///
/// # Errors
/// When they have another width.
pub(in crate::model) fn check_width(matrix: &Matrix, width: usize) -> Result<()> {
    if matrix.width() == width {
        return Ok(());
    }
    Err(Error::data("the features do not have the width that the model learned from")
        .found(format!("{} numbers a row, where the model takes {width}", matrix.width()))
        .help("give the same columns in the same order as for training"))
}

/// The error for sizes that no model has.
pub(in crate::model) fn impossible_sizes(found: &impl serde::Serialize) -> Error {
    Error::data("the saved model's sizes are those of no model")
        .at("model.json: sizes")
        .found(serde_json::json!(found).to_string())
}

#[allow(clippy::needless_pass_by_value)]
fn misfit(e: serde_json::Error) -> Error {
    Error::data(format!("the saved model's description does not fit: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Dims;
    use crate::testing::{annotations, tiny, weighted};

    /// Nobody annotates instance 1, and instance 3 is trusted alone.
    #[test]
    fn only_annotated_instances_are_warned_to_have_no_features() {
        let mut a = annotations(
            Dims { instances: 4, annotators: 1, classes: 2, labels: 2 },
            &[(0, 0, 0), (2, 0, 1)],
        );
        a.trusted = Some(vec![None, None, None, Some(1)]);
        assert_eq!(without_features(&a, |i| i == 0 || i == 2), None);
        let warning = without_features(&a, |i| i == 0).unwrap();
        assert!(warning.starts_with("1 of 2 annotated instances have no features"), "{warning}");
    }

    #[test]
    fn only_a_second_annotator_makes_a_second_annotation() {
        let is_cautioned = |a: &Annotations| single_annotations(a).is_some();
        assert!(is_cautioned(&tiny(2, &[(0, 0, 0), (1, 1, 1)])));
        assert!(is_cautioned(&tiny(2, &[(0, 0, 0), (0, 0, 1), (1, 1, 1)])), "repeated answers");
        let dims = Dims { instances: 2, annotators: 2, classes: 2, labels: 2 };
        let soft = weighted(dims, &[(0, 0, 0), (0, 0, 1), (1, 1, 1)], vec![0.3, 0.7, 1.0]);
        assert!(is_cautioned(&soft), "a soft annotation");
        assert!(!is_cautioned(&tiny(2, &[(0, 0, 0), (0, 1, 0), (1, 1, 1)])));
        let empty = annotations(Dims { annotators: 0, ..dims }, &[]);
        assert!(!is_cautioned(&empty));
    }
}
