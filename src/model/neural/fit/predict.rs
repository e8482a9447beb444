//! Saved models: their description, and prediction with them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_core::Device;
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::frame::{Dims, JointQuestion, Matrix};
use crate::job_context::JobContext;
use crate::model::classifier::from_features;
use crate::model::neural::data::TrainingData;
use crate::model::neural::data::inputs::Inputs;
use crate::model::neural::data::sizes::Sizes;
use crate::model::neural::device::name_of;
use crate::model::neural::objective::batch_context::BatchContext;
use crate::model::neural::objective::crowd_net::CrowdNet;
use crate::model::neural::objective::network_spec::NetworkSpec;
use crate::model::neural::objective::train_state::Estimates;
use crate::model::neural::params::annotator_params::AnnotatorParams;
use crate::model::neural::spec::Neural;
use crate::model::neural::train::learners::Learners;
use crate::model::neural::train::learners::learner::LearnerSetting;
use crate::model::neural::train::learners::on_device::{learners_on_device, rows_of_prediction};
use crate::model::neural::train::step::Predictor;
use crate::model::posterior::Posterior;
use crate::model::saved::snapshot::Snapshot;
use crate::model::{Predicted, SavedModel};

/// The kind, parameters, sizes and modules of a trained model as JSON, without the names of its classes.
pub(super) fn description<N: CrowdNet>(
    model: &Neural<N>,
    learners: &Learners,
    sizes: &Sizes,
) -> Value {
    let network = learners.classifier.network.modules();
    json!({"kind": N::KIND, "parameters": model, "sizes": sizes, "network": network})
}

/// P(class given features) of every row, by a saved model.
///
/// # Errors
/// When the features have another width, the parameters belong to another model, or the device fails.
pub fn predict<N: CrowdNet>(
    model: SavedModel<'_>,
    matrix: &Matrix,
    job: &JobContext,
) -> Result<Predicted> {
    let SavedModel { parameters, sizes, bytes, device: on } = model;
    // The device of the training may not exist here.
    let spec = from_features::spec_of(parameters, |spec: &mut Neural<N>| {
        if let Some(on) = on {
            on.clone_into(&mut spec.network.device);
        }
    })?;
    let saved: Sizes = from_features::sizes_of(sizes)?;
    let width = checked_product(&saved.features)
        .filter(|_| saved.classes > 0 && saved.labels >= saved.classes);
    let question = saved.joint_question(saved.question);
    let is_own = |q: JointQuestion| (q.classes, q.labels) == (saved.classes, saved.labels);
    let is_possible = question.map_or(saved.questions.is_empty(), is_own);
    let width = width.filter(|_| is_possible);
    let width = width.ok_or_else(|| from_features::impossible_sizes(&saved))?;
    let joint = saved.of_joint();
    from_features::check_width(matrix, width)?;
    let snapshot = Snapshot::from_bytes(bytes)?;
    let annotator_params = AnnotatorParams::saved(&snapshot)?;
    annotator_params.check_annotators(saved.annotators)?;
    let learners = spec.learners(&joint);
    let Neural { network: NetworkSpec { device: on, train, .. }, model } = spec;
    let precision = train.precision;
    let setting = LearnerSetting {
        precision,
        sizes: &joint,
        job,
        device: &Device::Cpu,
        saved: Some(&snapshot),
    };
    let step = rows_of_prediction(matrix.len());
    let (learners, device) = learners_on_device(&on, learners, &setting, step)?;
    learners.check_tables(&annotator_params).map_err(|_| unfit())?;
    let dims = Dims {
        instances: matrix.len(),
        annotators: saved.annotators,
        classes: joint.classes,
        labels: joint.labels,
    };
    let predictor = Predictor {
        learners: &learners,
        annotator_params: &annotator_params,
        estimates: &Estimates::default(),
        dims,
    };
    let mut predictions = Posterior::zeros(matrix.len(), saved.classes);
    let at_once = learners.rows_at_once();
    for first in (0..matrix.len()).step_by(at_once) {
        job.cancel.check()?;
        let rows = first..(first + at_once).min(matrix.len());
        // The arrays of a damaged file may not fit each other, and each model indexes them in its own way: this catches
        // the panic of an index out of bounds.
        let ids = rows.clone().map(|row| row as u32).collect();
        let batch = TrainingData::unseen_of(question, ids);
        let read_out = |context: &BatchContext<'_>| model.predict(context);
        let predicted =
            AssertUnwindSafe(|| predictor.with_outputs(Inputs::unseen(matrix), &batch, read_out));
        let predicted = catch_unwind(predicted)
            .unwrap_or_else(|panic| Err(Error::of_panic(&*panic, unfit())))?;
        if predicted.classes.len() != rows.len() * joint.classes {
            return Err(unfit());
        }
        predictions.set_rows(rows.start, &predicted.classes, joint.classes);
    }
    Ok(Predicted { classes: predictions, device: name_of(&device) })
}

fn unfit() -> Error {
    Error::data("the saved model's numbers do not fit its description")
        .help("the files belong together: take both from the run that wrote them")
}

/// The product; `None` if it overflows.
fn checked_product(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(1_usize, |product, size| product.checked_mul(*size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Evidence, QuestionFeatures};
    use crate::model::Model as _;
    use crate::model::fitted::Fitted;
    use crate::model::neural::models::{Dl, TraceRegularised, WeightedDoctorNet};
    use crate::model::neural::objective::train_spec::TrainSpec;
    use crate::testing::{tiny, with_features};

    /// A model after one epoch on the CPU, and the features that it learned from.
    fn fitted<N: CrowdNet>() -> (QuestionFeatures, Fitted) {
        let a = tiny(2, &(0..20).map(|n| (n / 2, n % 2, n / 2 % 2)).collect::<Vec<_>>());
        let features = with_features(&a);
        let evidence = Evidence { annotations: &a, with_features: Some(&features) };
        let mut model = Neural::<N>::default();
        model.network.device = "cpu".to_owned();
        model.network.train = TrainSpec { epochs: 1, ..TrainSpec::default() };
        let fitted = model.fit(evidence, &mut JobContext::new(1)).unwrap();
        (features, fitted)
    }

    /// The classifier was trained on a GPU of another machine.
    // keys: model.device
    #[test]
    fn the_device_of_the_training_need_not_exist() {
        let (features, fitted) = fitted::<TraceRegularised>();
        let trained = fitted.model.unwrap();
        let predicted = |device| {
            let mut model = SavedModel::new(&trained.description, &trained.parameters, device);
            model.parameters["device"] = "cuda:7".into();
            predict::<TraceRegularised>(model, features.matrix(), &JobContext::new(1))
        };
        assert_eq!(fitted.predictions, Some(predicted(Some("cpu")).unwrap().classes));
        let error = predicted(Some("tpu")).unwrap_err().to_string();
        assert!(error.contains("there is no such device"), "{error}");
        if !cfg!(feature = "cuda") {
            let error = predicted(None).unwrap_err().to_string();
            assert!(error.contains("model.json: parameters.device"), "{error}");
        }
    }

    /// Earlier versions wrote both for `preset = "paper"`.
    #[test]
    fn a_saved_model_predicts_though_it_names_settings_that_a_job_may_not_name() {
        let (features, fitted) = fitted::<Dl>();
        let trained = fitted.model.unwrap();
        let mut model = SavedModel::new(&trained.description, &trained.parameters, None);
        let optimiser = &mut model.parameters["train"]["optimiser"];
        optimiser["annotator_learning_rate"] = 1e-4.into();
        optimiser["annotator_delay"] = 0.into();
        let predicted = predict::<Dl>(model, features.matrix(), &JobContext::new(1)).unwrap();
        assert_eq!(fitted.predictions, Some(predicted.classes));
    }

    #[test]
    fn annotators_that_the_tables_do_not_have_are_refused() {
        let (features, fitted) = fitted::<WeightedDoctorNet>();
        let trained = fitted.model.unwrap();
        let with = |annotators: usize| {
            let mut model = SavedModel::new(&trained.description, &trained.parameters, None);
            model.sizes["annotators"] = annotators.into();
            predict::<WeightedDoctorNet>(model, features.matrix(), &JobContext::new(1))
        };
        assert!(with(2).is_ok());
        for annotators in [1, 3, 300_000_000] {
            let error = with(annotators).unwrap_err();
            assert_eq!(error.exit_code(), 3, "{error}");
            let found = format!("{annotators} there, 2 rows of");
            assert!(error.to_string().contains(&found), "{error}");
        }
    }
}
