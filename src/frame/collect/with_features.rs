//! Matches features to the instances and annotators of a question.

use super::overlaps::{instances_without_features, without_features};
use crate::error::{Error, Result};
use crate::frame::evidence::QuestionFeatures;
use crate::frame::features::Features;
use crate::frame::gold::{Gold, GoldRows};
use crate::frame::ids::{IdIndex, Ids};
use crate::frame::question_frame::Frame;

/// Features with an index of their ids, for the lookups of every question.
pub(super) struct Indexed {
    features: Features,
    pub(super) index: IdIndex,
}

impl Indexed {
    pub(super) fn new(features: Features, column: &str) -> Result<Self> {
        Ok(Self { index: features.ids.index(column)?, features })
    }

    /// Checks that the type of the annotated ids can hold all feature ids: tables hold both in one column of that type.
    pub(super) fn expect_in(&self, annotated: &Ids) -> Result<()> {
        let (own, wanted) = (&self.features.ids, annotated.values().data_type());
        own.first_outside(wanted)?.map_or(Ok(()), |id| {
            Err(Error::data("an id of the features does not fit the type of the annotations' ids")
                .found(format!("`{}`, where the annotations hold {wanted}", own.text(id)))
                .help("write the ids of both with one type, or cast those of the annotations in source.sql"))
        })
    }

    /// The feature row of each of `ids`, `None` where there is none.
    fn rows_of(&self, ids: &Ids) -> Result<Vec<Option<u32>>> {
        self.index.lookup_ids(ids)
    }
}

/// Matches features to the instances and annotators of one question; also returns the gold rows whose class the
/// question does not have.
pub(super) fn match_features(
    frame: &Frame,
    features: &Indexed,
    annotators: Option<&Indexed>,
    gold: Option<&GoldRows>,
) -> Result<(QuestionFeatures, Vec<Gold>)> {
    let row_of_instance =
        features.rows_of(&frame.instances).map_err(|e| e.or_at("source.features"))?;
    let Indexed { features, index } = features;
    if row_of_instance.iter().all(Option::is_none) {
        let overlap = instances_without_features(frame, &features.ids);
        return Err(overlap.error().at("source.features"));
    }
    let annotators = annotators
        .map(|annotators| {
            let rows = annotators.rows_of(&frame.annotators);
            let rows = rows.map_err(|e| e.or_at("source.annotator_features"))?;
            let Indexed { features, .. } = annotators;
            if rows.iter().all(Option::is_none) {
                let ids = (&frame.annotators, &features.ids, "annotator");
                let overlap = without_features(ids, "the features of annotators");
                return Err(overlap.error().at("source.annotator_features"));
            }
            Ok::<_, Error>((features.clone(), rows))
        })
        .transpose()?;
    let (gold, unknown) = match gold {
        Some(rows) => {
            let classes = frame.annotations.dims().classes;
            rows.by_feature_row((&features.ids, index), &frame.labels, classes)?
        }
        None => (Vec::new(), Vec::new()),
    };
    Ok((
        QuestionFeatures { features: features.clone(), row_of_instance, gold, annotators },
        unknown,
    ))
}
