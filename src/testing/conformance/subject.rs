//! The subject of a check.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::crowds::usual_crowd;
use crate::error::Result;
use crate::frame::{
    Annotations, Dims, Evidence, Frame, GivenConfusion, QuestionFeatures, QuestionSet,
};
use crate::job_context::JobContext;
use crate::model::fitted::Fitted;
use crate::model::{FeatureUse, Model, ModelKind};
use crate::testing::{numbered_frame, with_features};

/// Whether a kind has the sections of a network.
pub(super) fn is_network(kind: &ModelKind) -> bool {
    (kind.defaults)()["train"].is_object()
}

/// The epochs of a network whose accuracy does not matter. They reach every phase of every kind.
const FEW_EPOCHS: u32 = 10;

/// A kind of model with the parameters of its fits.
pub(super) struct Subject<'a> {
    pub(super) kind: &'a ModelKind,
    pub(super) parameters: Value,
    /// [`Subject::fitted`], once a check has asked for it.
    fitted: OnceLock<std::result::Result<Fitted, String>>,
}

impl<'a> Subject<'a> {
    pub(super) fn new(kind: &'a ModelKind, parameters: Value) -> Self {
        Self { kind, parameters, fitted: OnceLock::new() }
    }

    /// The same with few epochs, if it is a network: for what is the same however well a network is trained.
    pub(super) fn briefly(&self) -> Self {
        let mut parameters = self.parameters.clone();
        if is_network(self.kind) {
            parameters["train"]["epochs"] = FEW_EPOCHS.into();
        }
        Self::new(self.kind, parameters)
    }

    /// The same with a single start: the noise of further ones depends on the order of the instances.
    pub(super) fn with_one_start(&self) -> Self {
        let mut parameters = self.parameters.clone();
        if let Some(restarts) = parameters.get_mut("restarts") {
            *restarts = 0.into();
        }
        Self::new(self.kind, parameters)
    }

    /// A brief fit to [`usual_crowd`], which several checks look at.
    pub(super) fn fitted(&self) -> std::result::Result<&Fitted, String> {
        let fit = || self.briefly().fit(&usual_crowd());
        self.fitted.get_or_init(fit).as_ref().map_err(Clone::clone)
    }

    pub(super) fn fit(&self, a: &Annotations) -> std::result::Result<Fitted, String> {
        self.fit_in(a, JobContext::new(1)).map_err(|e| e.to_string())
    }

    pub(super) fn fit_in(&self, a: &Annotations, job: JobContext) -> Result<Fitted> {
        self.fit_with(a, &with_features(a), job)
    }

    /// Fits the model with these features, if it needs any.
    pub(super) fn fit_with(
        &self,
        a: &Annotations,
        features: &QuestionFeatures,
        mut job: JobContext,
    ) -> Result<Fitted> {
        let model = self.model()?;
        let with_features = self.kind.capabilities.features.are_read().then_some(features);
        let a = self.with_given(a.clone());
        let evidence = Evidence { annotations: &a, with_features };
        job.pool().install(|| model.fit(evidence, &mut job))
    }

    /// The annotations with the tables that the kind cannot do without.
    fn with_given(&self, mut a: Annotations) -> Annotations {
        let needs = self.kind.capabilities.confusion == FeatureUse::Needed
            || self.parameters["known_confusion"] == true;
        if needs {
            a.given.confusion = Some(Arc::new(matrices(a.dims(), 0)));
        }
        a
    }

    /// Fits the model to several questions.
    pub(super) fn fit_frames(
        &self,
        frames: &[Frame],
        mut job: JobContext,
    ) -> std::result::Result<Vec<Fitted>, String> {
        let mut fit = || self.model()?.fit_questions(&QuestionSet::of_frames(frames)?, &mut job);
        fit().map_err(|e: crate::error::Error| e.to_string())
    }

    /// The frame of a crowd whose instances are the first of those with these features.
    pub(super) fn frame(&self, a: &Annotations, features: &QuestionFeatures) -> Frame {
        let Dims { instances, annotators, .. } = a.dims();
        let mut frame = numbered_frame(a, 0..annotators as u32);
        frame.annotations = self.with_given(frame.annotations);
        if self.kind.capabilities.features.are_read() {
            let mut own = features.clone();
            own.row_of_instance.truncate(instances);
            frame.with_features = Some(own);
        }
        frame
    }

    fn model(&self) -> Result<Box<dyn Model>> {
        let (kind, mut parameters) = (self.kind, self.parameters.clone());
        if is_network(kind) {
            parameters["backbone"]["hidden"] = serde_json::json!([64]);
            parameters["device"] = "cpu".into();
            if let Some(missing) = parameters.get_mut("max_missing") {
                // The crowds of the checks are sparse.
                *missing = 1.0.into();
            }
        }
        Ok(kind.load(parameters)?.model)
    }
}

/// One confusion matrix for all annotators, who name the class that comes `shift` after the true one nine times in ten.
pub(super) fn matrices(
    Dims { annotators, classes, labels, .. }: Dims,
    shift: usize,
) -> GivenConfusion {
    let wrong = 0.1 / labels.saturating_sub(1).max(1) as f64;
    let right = if labels > 1 { 0.9 } else { 1.0 };
    let is_named = |cell: usize| (cell / labels + shift) % classes == cell % labels;
    let cell = |cell: usize| if is_named(cell) { right } else { wrong };
    let cells = (0..classes * labels).map(cell).collect();
    GivenConfusion::new((classes, labels), vec![0; annotators], cells)
}
