//! The stable codes of warnings about what the data cannot support.

/// Names a warning for programs: its text may change, its code does not. A message ends with it in brackets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WarningCode {
    /// The iterations ran out before the objective converged.
    NotConverged,
}

impl WarningCode {
    /// Every code, in the order of the documentation.
    pub const ALL: &[Self] = &[Self::NotConverged];

    /// The code as it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.entry().0
    }

    /// When a run has this warning.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        self.entry().1
    }

    fn entry(self) -> (&'static str, &'static str) {
        match self {
            Self::NotConverged => {
                ("not_converged", "the iterations ran out before the objective converged")
            }
        }
    }
}
