//! A vote in which annotators count by how often they agree with the majority.
//!
//! ```text
//! lab[i] = argmax of the majority vote
//! s[r]   = share of r's annotations (by weight) that equal lab
//! T[i]   = votes weighted with s, normalised
//! ```
//! Worker agreement with aggregate: one round of weights on a majority vote, as labelling platforms use it. An annotator's
//! own vote is part of the majority that he is compared with, which flatters everybody where instances have few
//! annotations.
//!
//! Differs from crowd-kit's `Wawa` in ties, which it breaks: of k classes with equally many votes, each is the label by 1/k.
//!
//! ```
//! use labelmill::model::{Model, vote::Wawa};
//! use labelmill::testing::tiny;
//!
//! let a = tiny(2, &[(0, 0, 0), (0, 1, 0), (0, 2, 1), (1, 0, 1), (1, 2, 1)]); // (instance, annotator, label)
//! let fitted = Wawa::default().fit((&a).into(), &mut labelmill::job_context::JobContext::new(0)).unwrap();
//! assert_eq!(fitted.report.skill, [1.0, 1.0, 0.5]);
//! assert_eq!(*fitted.posterior.row(0), [0.8, 0.2]);
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rounds::{self, Rounds};
use crate::error::Result;
use crate::frame::{Evidence, MemoryEstimate, QuestionSizes};
use crate::job_context::JobContext;
use crate::model::fitted::Fitted;
use crate::model::{Model, Spec};

/// Worker agreement with aggregate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Wawa {}

impl Spec for Wawa {
    const KIND: &'static str = "wawa";
    const SUMMARY: &'static str = "a vote weighted by each annotator's agreement with the majority";
    const SOURCE: &'static str = "practice of labelling platforms; crowd-kit, peerannot";
}

impl Model for Wawa {
    fn fit(&self, evidence: Evidence<'_>, job: &mut JobContext) -> Result<Fitted> {
        let rounds = Rounds {
            kind: Self::KIND,
            start: 1.0,
            max_steps: 1,
            stops_when_stable: false,
            loss: None,
            weigh: &|_, agreement, _| agreement.to_vec(),
        };
        rounds.fit(evidence.annotations, job, |weights, _| weights.to_vec())
    }

    fn memory_estimate(sizes: &QuestionSizes) -> Option<MemoryEstimate> {
        rounds::memory_estimate(sizes)
    }
}
