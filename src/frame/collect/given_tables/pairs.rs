//! The pairs of an instance and an annotator that a job asks about.

use std::sync::Arc;

use super::table::GivenTable;
use crate::error::{Error, Result, offenders};
use crate::frame::Frame;
use crate::job_context::JobContext;

/// What keeps a pair from being taken; of several questions, what the one that comes nearest to taking it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Lack {
    Nothing,
    Annotator,
    Instance,
    Question,
}

/// Gives each question the pairs of its instances and annotators; a pair that names no question is one of all questions.
/// Warns of pairs that no question takes.
///
/// # Errors
/// When no pair is taken, or their ids have another type than those of the annotations.
pub(super) fn add_pairs(
    frames: &mut [Frame],
    table: &GivenTable,
    job: &mut JobContext,
) -> Result<()> {
    let mut lacks = vec![Lack::Question; table.batch.num_rows()];
    for frame in frames {
        let instances = table.look_up(&frame.instances, "instance_id")?;
        let annotators = table.look_up(&frame.annotators, "annotator_id")?;
        let is_own = table.is_of_question(frame)?;
        let mut pairs = Vec::new();
        for (row, pair) in instances.into_iter().zip(annotators).enumerate() {
            let lack = match pair {
                _ if is_own.as_ref().is_some_and(|own| !own.value(row)) => Lack::Question,
                (Some(instance), Some(annotator)) => {
                    pairs.push((instance, annotator));
                    Lack::Nothing
                }
                (Some(_), None) => Lack::Annotator,
                (None, _) => Lack::Instance,
            };
            lacks[row] = lacks[row].min(lack);
        }
        pairs.sort_unstable();
        pairs.dedup();
        frame.annotations.given.pairs = Arc::new(pairs);
    }
    let n_of = |lack| lacks.iter().filter(|own| **own == lack).count();
    let refused = lacks.len() - n_of(Lack::Nothing);
    if refused == 0 {
        return Ok(());
    }
    let reasons = [
        (Lack::Instance, "of instances without annotations"),
        (Lack::Annotator, "of annotators without annotations"),
        (Lack::Question, "of questions without annotations"),
    ];
    let reasons = reasons.map(|(lack, what)| (n_of(lack), what)).into_iter();
    let reasons: Vec<String> =
        reasons.filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    let rows = (0..lacks.len()).filter(|row| lacks[*row] != Lack::Nothing);
    let examples = offenders(rows.map(|row| table.shown(row)).collect::<Result<Vec<_>>>()?);
    if refused == lacks.len() {
        return Err(Error::data("no pair is of an instance and an annotator with annotations")
            .found(format!("{}: {examples}", reasons.join(", ")))
            .help("a model knows only those; are the ids spelled as in the annotations?"));
    }
    job.warn(format!(
        "pairs in source.pairs that are left out: {refused} of {} ({}): {examples}",
        lacks.len(),
        reasons.join(", ")
    ));
    Ok(())
}
