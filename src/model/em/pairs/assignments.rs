//! When an EM of pairs assigns instances to classes, instead of computing posteriors.
//!
//! # Why
//! Classification EM differs from EM in its E-step alone: an instance counts as its most probable class, or in equal parts
//! as those that tie. So it is the same loop of the same kernels with another count, from its start or from some step on.
//! The posteriors that a fit publishes are those before the last assignment: an assignment says nothing about its
//! certainty.

/// Whether an E-step counts assignments.
#[derive(Debug)]
pub(super) struct Assignments {
    /// They begin when P(class) changes by no more than this, summed over the classes; `None` for never.
    below: Option<f64>,
    state: AssignmentState,
    /// P(class) of the last M-step; empty before the first one.
    shares: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum AssignmentState {
    /// Posteriors are counted.
    Soft,
    /// The last M-step has changed little: the next E-step but one is the first to assign.
    Due,
    /// The E-step after this M-step is the first to assign.
    First,
    Hard,
}

impl Assignments {
    /// Those of a start.
    pub(super) fn new(below: Option<f64>) -> Self {
        let state = if below == Some(f64::INFINITY) {
            AssignmentState::Hard
        } else {
            AssignmentState::Soft
        };
        Self { below, state, shares: Vec::new() }
    }

    /// Takes note of an M-step with its P(class); returns whether the E-step that follows assigns.
    pub(super) fn after_m_step(&mut self, shares: &[f64]) -> bool {
        self.state = match (self.state, self.below) {
            (AssignmentState::Soft, Some(below)) if self.change_to(shares) <= below => {
                AssignmentState::Due
            }
            (AssignmentState::Due, _) => AssignmentState::First,
            (AssignmentState::First, _) => AssignmentState::Hard,
            (state, _) => state,
        };
        self.shares.clear();
        self.shares.extend_from_slice(shares);
        self.are_made()
    }

    /// The sum over the classes of how much P(class) changes; infinite in the first M-step.
    fn change_to(&self, shares: &[f64]) -> f64 {
        if self.shares.is_empty() {
            return f64::INFINITY;
        }
        self.shares.iter().zip(shares).map(|(old, new)| (old - new).abs()).sum()
    }

    /// Whether the next E-step, or the start, assigns.
    pub(super) fn are_made(&self) -> bool {
        matches!(self.state, AssignmentState::First | AssignmentState::Hard)
    }

    /// Whether the first assignments, after posteriors, were those of the last E-step.
    pub(super) fn begin_now(&self) -> bool {
        self.state == AssignmentState::First
    }

    /// Whether posteriors will give way to assignments.
    pub(super) fn are_to_come(&self) -> bool {
        self.below.is_some() && !self.are_made()
    }
}
