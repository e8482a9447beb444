//! The models, one file per paper.

pub(crate) mod agg_net;
pub(crate) mod conal;
pub(crate) mod crowd_layer;
pub(crate) mod cvl;
pub(crate) mod dl;
pub(crate) mod doctor_net;
pub(crate) mod lia;
pub(crate) mod max_mig;
pub(crate) mod mbem;
pub(crate) mod single_confusion;
pub(crate) mod soft_bootstrap;
pub(crate) mod tcl;
pub(crate) mod trace_regularised;

pub use agg_net::AggNet;
pub use conal::Conal;
pub use crowd_layer::CrowdLayer;
pub use cvl::Cvl;
pub use dl::Dl;
pub use doctor_net::DoctorNet;
pub use doctor_net::weighted_doctor_net::WeightedDoctorNet;
pub use lia::Lia;
pub use lia::lia_multi::LiaMulti;
pub use max_mig::MaxMig;
pub use mbem::Mbem;
pub use single_confusion::SingleConfusion;
pub use soft_bootstrap::SoftBootstrap;
pub use tcl::Tcl;
pub use tcl::tcls::Tcls;
pub use trace_regularised::TraceRegularised;

use crate::model::ModelKind;

/// The models of this folder.
pub static KINDS: &[ModelKind] = &[
    ModelKind::neural::<Dl>(),
    ModelKind::neural::<SoftBootstrap>(),
    ModelKind::neural::<AggNet>(),
    ModelKind::neural::<Mbem>(),
    ModelKind::neural::<Tcl>(),
    ModelKind::neural::<Tcls>(),
    ModelKind::neural::<Cvl>(),
    ModelKind::neural::<SingleConfusion>(),
    ModelKind::neural::<DoctorNet>(),
    ModelKind::neural::<WeightedDoctorNet>(),
    ModelKind::neural::<CrowdLayer>(),
    ModelKind::neural::<TraceRegularised>(),
    ModelKind::neural::<MaxMig>(),
    ModelKind::neural::<Conal>(),
    ModelKind::neural::<Lia>(),
    ModelKind::neural::<LiaMulti>(),
];
