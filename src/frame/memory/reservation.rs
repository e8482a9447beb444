//! Reserves the frame's memory in the session's memory pool, which queries share: beyond the limit, the run fails.
//!
//! # Why
//! The system kills a process that needs more memory than the machine has, without a message and minutes into its work.
//! Id tables, numbered rows, posteriors, expected counts and the numbers of a calibration are nearly all the memory of a
//! run, and their sizes are known before they are allocated. So they are reserved in the same pool as the memory of
//! queries, and a reservation that does not fit is an error that states its size.

use std::sync::Arc;

use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

use super::estimate::{
    EstimateOfJob, MemoryEstimate, QuestionSizes, posteriors_in_words, working_in_words,
};
use crate::engine::{bytes_in_words, too_little_memory};
use crate::error::{Error, Result};

/// Bytes of an annotation while the views are built: its three numbers in order of arrival, two of them grouped by instance,
/// and its positions in both views.
pub const BYTES_PER_ANNOTATION: u64 = 44;

/// Bytes of a weight while the views are built: in order of arrival, grouped by instance, and in the view by column.
pub(in crate::frame) const BYTES_PER_WEIGHT: usize = 24;

/// Bytes of a time while the newest answers are selected: its row among those of its instance and among the removed rows,
/// whether to keep it, and the number of rows and the offset of an instance, which may have no other row.
pub(in crate::frame) const BYTES_PER_TIME: usize = 29;

/// Bytes that are not counted, so that small jobs run under any limit.
const NEGLIGIBLE: usize = 1 << 20;

/// The bytes of a vector after `more` values: a full one grows to twice its size.
pub(in crate::frame) fn grown_bytes<T>(values: &Vec<T>, more: usize) -> usize {
    let (n, capacity) = (values.len().saturating_add(more), values.capacity());
    let grown = if n > capacity { n.max(2 * capacity) } else { capacity };
    grown.saturating_mul(size_of::<T>())
}

/// A reservation in the session's memory pool.
pub(in crate::frame) struct Reservation {
    pool: Arc<dyn MemoryPool>,
    reservation: MemoryReservation,
}

impl Reservation {
    /// Nothing reserved yet; `what` names the holder in other consumers' errors.
    pub(in crate::frame) fn new(context: &TaskContext, what: &str) -> Self {
        let pool = Arc::clone(context.memory_pool());
        let reservation = MemoryConsumer::new(what).register(&pool);
        Self { pool, reservation }
    }

    /// Changes the size of the reservation to `bytes`; `what` describes their content in the error.
    ///
    /// # Errors
    /// When they do not fit next to the other reservations.
    pub(in crate::frame) fn hold(&self, bytes: usize, what: impl FnOnce() -> String) -> Result<()> {
        let counted = bytes.saturating_sub(NEGLIGIBLE);
        self.reservation.try_resize(counted).map_err(|_| self.too_little(bytes as u64, &what()))
    }

    /// Adds `bytes` to the reservation, until the next [`Reservation::hold`] sets its size.
    pub(in crate::frame) fn add(&self, bytes: usize) -> Result<(), ()> {
        self.reservation.try_grow(bytes).map_err(drop)
    }

    /// Checks that the number of annotations that the files' metadata states can fit at all.
    ///
    /// # Errors
    /// When the annotations take more than the memory limit.
    pub(in crate::frame) fn expect(&self, rows: u64) -> Result<()> {
        let bytes = rows.saturating_mul(BYTES_PER_ANNOTATION);
        match self.pool.memory_limit() {
            MemoryLimit::Finite(limit) if bytes > limit.saturating_add(NEGLIGIBLE) as u64 => {
                Err(self.too_little(bytes, &format!("{rows} annotations")))
            }
            _ => Ok(()),
        }
    }

    fn too_little(&self, bytes: u64, what: &str) -> Error {
        let others = self.pool.reserved().saturating_sub(self.reservation.size());
        let taken = format!("{what} take {}", bytes_in_words(bytes));
        too_little_memory(self.pool.as_ref(), &taken, bytes, others as u64)
    }
}

/// The memory that is reserved while the questions of a run are finished, one after the other.
pub(in crate::frame) struct QuestionReservation<'a> {
    budget: &'a Reservation,
    /// Bytes that are held in addition to those of the question that is finished.
    beside: usize,
    /// The number of annotations of all questions.
    rows: usize,
    /// The number of finished questions, the results of which are among the bytes `beside`.
    finished: usize,
    /// The most working memory of the fit of a finished question: the questions are fitted one after the other.
    working: usize,
    /// The memory of the fit that was expected last, with the most working memory of all fits up to it.
    expected: MemoryEstimate,
    /// The memory of the fit of a question.
    fit_memory: EstimateOfJob,
}

impl<'a> QuestionReservation<'a> {
    /// The memory before the first question is finished; `rows` is the number of annotations of all questions.
    pub(in crate::frame) fn new(
        budget: &'a Reservation,
        fit_memory: EstimateOfJob,
        rows: usize,
    ) -> Self {
        let expected = MemoryEstimate::default();
        Self { budget, beside: 0, rows, finished: 0, working: 0, expected, fit_memory }
    }

    /// Adds bytes that are held until the last question is finished.
    pub(in crate::frame) fn add_beside(&mut self, bytes: usize) {
        self.beside = self.beside.saturating_add(bytes);
    }

    /// Reserves the bytes that building the frame of the next question takes.
    ///
    /// # Errors
    /// When they do not fit.
    pub(in crate::frame) fn hold(&self, building: usize) -> Result<()> {
        let what = || {
            let working = working_in_words(self.working);
            self.with_finished(format!("{} annotations and their ids{working}", self.rows))
        };
        let held = self.beside.saturating_add(self.working);
        self.budget.hold(held.saturating_add(building), what)
    }

    /// Reserves the memory of the question's fit, in addition to the bytes of its frame.
    ///
    /// # Errors
    /// When they do not fit.
    pub(in crate::frame) fn expect_fit(
        &mut self,
        frame: usize,
        sizes: &QuestionSizes,
    ) -> Result<()> {
        let own = (self.fit_memory)(sizes);
        let own = own.map(|own| MemoryEstimate { working: own.working.max(self.working), ..own });
        let all = own.and_then(|own| {
            let parts = [frame, own.kept()?, own.working];
            parts.into_iter().try_fold(self.beside, usize::checked_add)
        });
        let (Some(own), Some(all)) = (own, all) else {
            let what = self.with_finished(posteriors_in_words(sizes.dims));
            return Err(self.budget.too_little(u64::MAX, &what));
        };
        // Stays reserved until the next `hold`.
        self.budget.hold(all, || self.with_finished(own.text(sizes.dims)))?;
        self.expected = own;
        Ok(())
    }

    /// Keeps the result of the fit that was expected last reserved while further questions are finished: the results of
    /// all questions are in memory until the tables are written.
    pub(in crate::frame) fn keep_result(&mut self) {
        self.add_beside(self.expected.kept().unwrap_or(usize::MAX));
        self.working = self.expected.working;
        self.finished += 1;
    }

    fn with_finished(&self, own: String) -> String {
        match self.finished {
            0 => own,
            1 => format!("{own}, and the results of another question,"),
            n => format!("{own}, and the results of {n} other questions,"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineSpec;
    use crate::frame::annotations::Dims;
    use crate::frame::memory::estimate::dense_memory_estimate;

    fn budget(limit: &str) -> Reservation {
        let engine = EngineSpec { memory_limit: Some(limit.to_owned()), ..EngineSpec::default() };
        Reservation::new(&engine.session().unwrap().task_ctx(), "test")
    }

    fn sizes(instances: usize, classes: usize) -> QuestionSizes {
        let dims = Dims { instances, annotators: 1, classes, labels: classes };
        QuestionSizes { dims, annotations: 1, pairs: 1, gold_roles: Vec::new() }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_says_how_much_it_takes() {
        let budget = budget("64MiB");
        assert!(budget.hold(60 << 20, || "ids".to_owned()).is_ok());
        let error = budget.hold(66 << 20, || "ids".to_owned()).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("ids take 66 MiB; 64 MiB may be taken"), "{error}");
        assert!(budget.expect(1_000_000).is_ok());
        assert!(budget.expect(2_000_000).is_err());
        assert!(budget.expect(u64::MAX).is_err());
    }

    #[test]
    fn a_limit_of_the_stated_size_is_enough_for_the_step() {
        let budget_beside_gold = |limit: &str| {
            let engine =
                EngineSpec { memory_limit: Some(limit.to_owned()), ..EngineSpec::default() };
            let context = engine.session().unwrap().task_ctx();
            let gold = Reservation::new(&context, "gold");
            gold.hold(21 << 20, || "gold".to_owned()).unwrap();
            (gold, Reservation::new(&context, "annotations"))
        };
        let (_gold, budget) = budget_beside_gold("64MiB");
        budget.hold(10 << 20, || "ids".to_owned()).unwrap();
        let error = budget.hold(50 << 20, || "ids".to_owned()).unwrap_err().to_string();
        let found = "ids take 50 MiB; 64 MiB may be taken, of which 20 MiB are held already, queries included: \
                     this step needs a limit of at least 70 MiB";
        assert!(error.contains(found), "{error}");
        let (_gold, budget) = budget_beside_gold("70MiB");
        assert!(budget.hold(50 << 20, || "ids".to_owned()).is_ok());
        // The stated size has the part that is not counted once too often, and nothing else.
        let (_gold, budget) = budget_beside_gold("68MiB");
        assert!(budget.hold(50 << 20, || "ids".to_owned()).is_err());
    }

    #[test]
    fn the_part_that_is_not_counted_is_the_same_in_every_step() {
        let budget = budget("64MiB");
        let of_fit = |_: &QuestionSizes| Some(MemoryEstimate::of_posteriors(40 << 20));
        let mut held = QuestionReservation::new(&budget, Box::new(of_fit), 1);
        held.add_beside(2 << 20);
        held.hold(10 << 20).unwrap();
        assert_eq!(budget.reservation.size(), 11 << 20);
        held.expect_fit(10 << 20, &sizes(1, 1)).unwrap();
        assert_eq!(budget.reservation.size(), 51 << 20);
    }

    #[test]
    fn products_that_overflow_are_refused() {
        let budget = budget("64MiB");
        let mut held = QuestionReservation::new(&budget, Box::new(dense_memory_estimate), 1);
        assert!(held.expect_fit(0, &sizes(1000, 1000)).is_ok());
        assert!(held.expect_fit(0, &sizes(100_000, 1000)).is_err());
        assert!(held.expect_fit(0, &sizes(usize::MAX / 2, 3)).is_err());
    }

    #[test]
    fn results_of_finished_questions_stay_reserved() {
        let budget = budget("64MiB");
        let mut held = QuestionReservation::new(&budget, Box::new(dense_memory_estimate), 7);
        // 24 MiB: 2048 instances, and a matrix of half the size.
        let sizes = sizes(2048, 1024);
        for _ in 0..2 {
            held.hold(1 << 20).unwrap();
            held.expect_fit(1 << 20, &sizes).unwrap();
            held.keep_result();
        }
        held.hold(1 << 20).unwrap();
        let error = held.expect_fit(1 << 20, &sizes).unwrap_err().to_string();
        assert!(error.contains("and the results of 2 other questions, take 7"), "{error}");
        let error = held.hold(20 << 20).unwrap_err().to_string();
        let what = "7 annotations and their ids, and the results of 2 other questions, take 68 MiB";
        assert!(error.contains(what), "{error}");
    }

    /// The working memory of a fit is free again when the next question is fitted. The parts that an error names add up.
    #[test]
    fn working_memory_is_reserved_and_named_once_for_all_questions() {
        let budget = budget("64MiB");
        let of_fit = |sizes: &QuestionSizes| {
            let working = sizes.dims.instances << 20;
            Some(MemoryEstimate { working, ..MemoryEstimate::of_posteriors(10 << 20) })
        };
        let mut held = QuestionReservation::new(&budget, Box::new(of_fit), 1);
        for (instances, reserved) in [(20, 29), (30, 49), (5, 59)] {
            held.expect_fit(0, &sizes(instances, 2)).unwrap();
            assert_eq!(budget.reservation.size() >> 20, reserved);
            held.keep_result();
        }
        held.hold(4 << 20).unwrap();
        assert_eq!(budget.reservation.size() >> 20, 30 + 30 + 4 - 1);
        let error = held.expect_fit(0, &sizes(6, 2)).unwrap_err().to_string();
        let what = "posteriors of 6 instances and 2 classes (10 MiB) and working memory (30 MiB), and the results \
                    of 3 other questions, take 70 MiB";
        assert!(error.contains(what), "{error}");
        let error = held.hold(40 << 20).unwrap_err().to_string();
        let what = "1 annotations and their ids and working memory (30 MiB), and the results of 3 other questions, \
                    take 100 MiB";
        assert!(error.contains(what), "{error}");
    }
}
