//! The uses of gold.

use std::str::FromStr;

use crate::error::{Error, Result, did_you_mean};

/// The permitted use of a trusted class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// The model sees the class: the posterior is clamped.
    Train,
    /// Chooses between models or epochs.
    Valid,
    /// Fits the calibration.
    Calibrate,
    /// Only for scores.
    Holdout,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Train, Self::Valid, Self::Calibrate, Self::Holdout];

    /// The word in the gold table and in `metrics`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Valid => "valid",
            Self::Calibrate => "calibrate",
            Self::Holdout => "holdout",
        }
    }

    /// Whether the model sees the class.
    #[must_use]
    pub fn trains(self) -> bool {
        self == Self::Train
    }

    /// Whether the class is used for nothing but scores, so that it is not one of the run's classes.
    #[must_use]
    pub fn only_scores(self) -> bool {
        self == Self::Holdout
    }
}

impl FromStr for Role {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|r| r.word() == word).ok_or_else(|| {
            let words = Self::ALL.map(Self::word);
            Error::data("gold has an unknown role")
                .at("source.gold")
                .found(format!("`{word}`"))
                .help(did_you_mean(word, words, || {
                    format!("a role is one of {}", words.join(", "))
                }))
        })
    }
}
