use std::sync::Arc;

use super::*;
use crate::frame::{Evidence, Features};
use crate::job_context::JobContext;
use crate::model::Model as _;
use crate::model::neural::spec::Neural;
use crate::model::saved::snapshot::Snapshot;
use crate::testing::{tiny, with_features};

/// The features 6 and 2 of annotators 0 and 2 have the mean 4 and the deviation 2, so that they become 1 and -1;
/// annotator 1 has none. The embeddings are the projections of (1, 1), (0, 1) and (-1, 1), divided by their lengths.
#[test]
fn embeddings_follow_from_features_that_no_saved_model_holds() {
    let a = tiny(2, &(0..60).map(|n| (n / 3, n % 3, n / 3 % 2)).collect::<Vec<_>>());
    let mut with_features = with_features(&a);
    let matrix = Arc::new(Matrix::from_rows(1, &[2.0, 6.0]));
    let features = Features { matrix, ..with_features.features.clone() };
    with_features.annotators = Some((features, vec![Some(1), None, Some(0)]));
    let evidence = Evidence { annotations: &a, with_features: Some(&with_features) };
    let train = TrainSpec { epochs: 6, ..TrainSpec::default() };
    let network = NetworkSpec { device: "cpu".to_owned(), train, ..NetworkSpec::default() };
    let model = Neural { network, model: Conal { embedding: 3, ..Conal::default() } };
    let fitted = model.fit(evidence, &mut JobContext::new(1)).unwrap();
    let saved = Snapshot::from_bytes(&fitted.model.unwrap().parameters).unwrap();
    let tables: Vec<(&str, usize)> =
        saved.f32s_with_prefix("crowd.").map(|(name, _, values)| (name, values.len())).collect();
    assert_eq!(tables, [("00.common", 4), ("01.individual", 12), ("02.projection", 6)]);
    let projection = saved.find_f32s("crowd.02.projection").unwrap();
    let job = JobContext::new(1);
    let task = Task { evidence, dims: a.dims(), hidden: 0, job: &job };
    let start = Conal { embedding: 3, ..Conal::default() }.tables(&task).unwrap();
    assert_ne!(projection, &start[EMBEDDING].values[..], "the projection is trained");
    for (r, feature) in [1.0, 0.0, -1.0].into_iter().enumerate() {
        let u = [0, 1, 2].map(|j| f64::from(feature * projection[j] + projection[3 + j]));
        let length = u.iter().map(|u| u * u).sum::<f64>().sqrt();
        for (j, u) in u.iter().enumerate() {
            let (name, values) = &fitted.report.annotator_parameters[j];
            assert_eq!(name, &format!("embedding_{j}"));
            let want = u / length;
            assert!((values[r] - want).abs() < 1e-6, "{r}, {j}: {}, not {want}", values[r]);
        }
    }
}
