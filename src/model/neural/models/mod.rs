//! The models, one file per paper.

pub(crate) mod agg_net;
pub(crate) mod conal;
pub(crate) mod counted;
pub(crate) mod crowd_layer;
pub(crate) mod dl;
pub(crate) mod doctor_net;
pub(crate) mod head_weights;
pub(crate) mod lia;
pub(crate) mod max_mig;
mod paper;
pub(crate) mod single_confusion;
pub(crate) mod soft_bootstrap;
pub(crate) mod tcl;
pub(crate) mod trace_regularised;
pub(crate) mod weighted_doctor_net;

pub use agg_net::AggNet;
pub use conal::Conal;
pub use crowd_layer::CrowdLayer;
pub use dl::Dl;
pub use doctor_net::DoctorNet;
pub use lia::Lia;
pub use max_mig::MaxMig;
pub use single_confusion::SingleConfusion;
pub use soft_bootstrap::SoftBootstrap;
pub use tcl::Tcl;
pub use trace_regularised::TraceRegularised;
pub use weighted_doctor_net::WeightedDoctorNet;

use crate::model::ModelKind;
use crate::model::neural::annotator_matrices;

/// The models of this folder.
pub static KINDS: &[ModelKind] = &[
    ModelKind::neural::<Dl>(),
    ModelKind::neural::<SoftBootstrap>(),
    ModelKind { fit_bytes: annotator_matrices::fit_bytes, ..ModelKind::neural::<AggNet>() },
    ModelKind { fit_bytes: annotator_matrices::fit_bytes, ..ModelKind::neural::<Tcl>() },
    ModelKind::neural::<SingleConfusion>(),
    ModelKind::neural::<DoctorNet>(),
    ModelKind::neural::<WeightedDoctorNet>(),
    ModelKind::neural::<CrowdLayer>(),
    ModelKind::neural::<TraceRegularised>(),
    ModelKind::neural::<MaxMig>(),
    ModelKind::neural::<Conal>(),
    ModelKind::neural::<Lia>(),
];
