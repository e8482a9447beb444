//! All problems of a spec together.

use crate::error::{Error, Problem, Result};

/// The problems of a spec, collected and reported together.
#[derive(Debug, Default)]
pub struct Problems(pub(super) Vec<Problem>);

impl Problems {
    /// Adds a problem.
    pub fn push(&mut self, problem: Problem) {
        self.0.push(problem);
    }

    /// # Errors
    /// All of them as one [`Error`], when there is at least one.
    pub fn into_result(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::spec_problems(self.0)) }
    }
}
