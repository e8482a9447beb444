//! The best of the rounds that grow trees. It is kept, with its trees, when further rounds gain nothing.
//!
//! # Why
//! Trees that are grown again in each round may go around in circles: the objective falls in some rounds, and never
//! converges. With trees that stay, the rounds are those of plain EM.

use std::mem;

use super::tree_rounds::{BestRound, TreeRounds};
use super::{ClassifierEm, Params, Steps};
use crate::error::Result;
use crate::frame::Annotations;
use crate::model::em::Objective;
use crate::model::saved::snapshot::Snapshot;

/// Rounds that grow trees at most.
const MAX_ROUNDS: u32 = 20;

/// Trees stay after so many rounds in a row that were not the best.
const MAX_WITHOUT_GAIN: u32 = 3;

impl<E> Params<E> {
    /// Returns to the best round, if there is one, whose trees then stay; and its objective.
    pub(super) fn return_to_best(&mut self, a: &Annotations) -> Option<Objective> {
        let best = self.rounds.best.take()?;
        self.rounds.are_over = true;
        (self.prior, self.classifier, self.t) = (best.prior, best.classifier, best.posterior);
        self.count(a);
        self.kernel.set_state(best.state);
        Some(best.objective)
    }

    /// Adds the rounds to a checkpoint, with the trees of the best one.
    ///
    /// # Errors
    /// When the trees cannot be saved.
    pub(super) fn save_rounds(&self) -> Result<Snapshot> {
        let TreeRounds { best, n, without_gain, are_over } = &self.rounds;
        let mut to = Snapshot::default();
        let flags = [u32::from(*are_over), u32::from(best.is_some())];
        to.u32s("rounds".to_owned(), vec![*n, *without_gain, flags[0], flags[1]]);
        if let Some(BestRound { objective, prior, posterior, state, classifier }) = best {
            to.f64s("objective".to_owned(), vec![objective.maximised, objective.traced]);
            to.f64s("prior".to_owned(), prior.clone());
            to.f64s("posterior".to_owned(), posterior.values().to_vec());
            to.f64s("state".to_owned(), state.clone());
            classifier.save(&mut to)?;
        } else if *are_over {
            self.classifier.save(&mut to)?;
        }
        Ok(to)
    }
}

impl<M: ClassifierEm> Steps<'_, M> {
    /// Ends a round that has grown trees: keeps it, if it is the best, and returns to the best if it is the last one.
    /// Returns the objective of the round that the next one starts from.
    pub(super) fn end_round(
        &self,
        a: &Annotations,
        params: &mut Params<M::Rows>,
        objective: Objective,
    ) -> Objective {
        let rounds = &mut params.rounds;
        let min_gain = self.spec.stop().tol * a.len() as f64;
        let is_gain = |best: &BestRound| objective.maximised > best.objective.maximised + min_gain;
        rounds.n += 1;
        rounds.without_gain += 1;
        if rounds.best.as_ref().is_none_or(is_gain) {
            let classifier = mem::replace(&mut params.classifier, self.new_classifier(a));
            let (prior, posterior) = (params.prior.clone(), params.t.clone());
            let state = params.kernel.state().to_vec();
            rounds.best = Some(BestRound { objective, prior, posterior, state, classifier });
            rounds.without_gain = 0;
        }
        let is_last = rounds.n >= MAX_ROUNDS || rounds.without_gain >= MAX_WITHOUT_GAIN;
        let best = if is_last { params.return_to_best(a) } else { None };
        best.unwrap_or(objective)
    }

    /// Takes the rounds from a checkpoint.
    ///
    /// # Errors
    /// When the checkpoint is that of another fit.
    pub(super) fn load_rounds(
        &self,
        a: &Annotations,
        params: &mut Params<M::Rows>,
        from: &Snapshot,
    ) -> Result<()> {
        let rounds = from.take_u32s("rounds", 4)?;
        let (n, without_gain) = (rounds[0], rounds[1]);
        let (are_over, has_best) = (rounds[2] != 0, rounds[3] != 0);
        let mut best = None;
        if has_best {
            let mut classifier = self.new_classifier(a);
            classifier.load(from, 0, &self.job)?;
            let objective = from.take_n_f64s("objective", 2)?;
            best = Some(BestRound {
                objective: Objective { maximised: objective[0], traced: objective[1] },
                prior: from.take_n_f64s("prior", params.prior.len())?,
                posterior: from.take_posterior("posterior", a.dims())?,
                state: from.take_f64s("state")?,
                classifier,
            });
        } else if are_over {
            params.classifier.load(from, 0, &self.job)?;
        }
        params.rounds = TreeRounds { best, n, without_gain, are_over };
        Ok(())
    }
}
