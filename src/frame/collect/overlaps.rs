//! Whether the tables of a frame share ids and classes: gold, features and listed classes against the annotations.

use std::collections::BTreeSet;

use crate::error::{Overlap, Result, UnknownValues};
use crate::frame::gold::{GoldNumber, GoldRows};
use crate::frame::ids::{Ids, Interner, NULL};
use crate::frame::question_frame::Frame;
use crate::job_context::{JobContext, WarningCode};

/// The help where ids of instances are those of annotators.
const EXCHANGED: &str = "these are ids of annotators: source.columns.instance and source.columns.annotator may be exchanged";

/// The most values that are text at once.
const VALUES_AT_ONCE: usize = 8192;

/// The distinct values of a column of gold: how many there are, and those that the annotations lack.
pub(super) struct GoldValues {
    n: usize,
    missing: UnknownValues,
    /// Labels that annotators gave, where classes are missing.
    used: BTreeSet<String>,
    n_used: usize,
}

impl GoldValues {
    /// The instances, and the first row of gold of each that the annotations lack; the first `n_read` provisional numbers
    /// are those of annotations.
    pub(super) fn instances(
        gold: &[GoldNumber],
        ids: &Interner,
        n_read: usize,
    ) -> Result<(Self, Vec<u32>)> {
        let mut rows = Vec::new();
        let is_known = |n: u32| (n as usize) < n_read;
        let found = Self::missing(gold, ids, |g| g.instance, is_known, |g| rows.push(g.row))?;
        Ok((found, rows))
    }

    /// The classes; `used` tells of each label whether it is in a row that is used.
    pub(super) fn classes(gold: &[GoldNumber], ids: &Interner, used: &[bool]) -> Result<Self> {
        let is_used = |n: u32| used.get(n as usize).copied().unwrap_or_default();
        let found = Self::missing(gold, ids, |g| g.class, is_used, |_| ())?;
        let given = (0..used.len()).filter(|n| used[*n] && !found.missing.is_empty());
        let texts = ids.texts(given.map(|n| n as u32))?;
        Ok(Self { used: texts, n_used: used.iter().filter(|used| **used).count(), ..found })
    }

    /// Calls `note` with the first row of gold of each value that is not known.
    fn missing(
        gold: &[GoldNumber],
        ids: &Interner,
        number: fn(&GoldNumber) -> u32,
        is_known: impl Fn(u32) -> bool,
        mut note: impl FnMut(&GoldNumber),
    ) -> Result<Self> {
        let (mut seen, mut n, mut unknown) = (vec![false; ids.len()], 0, Vec::new());
        for gold in gold.iter().filter(|g| g.class != NULL) {
            let value = number(gold);
            if std::mem::replace(&mut seen[value as usize], true) {
                continue;
            }
            n += 1;
            if !is_known(value) {
                unknown.push(value);
                note(gold);
            }
        }
        let mut missing = UnknownValues::default();
        for part in unknown.chunks(VALUES_AT_ONCE) {
            let texts = ids.texts(part.iter().copied())?;
            texts.into_iter().for_each(|text| missing.add(text));
        }
        Ok(Self { n, missing, used: BTreeSet::new(), n_used: 0 })
    }

    /// The overlaps of these instances and of `classes`: see [`Self::overlap_of_instances`].
    pub(super) fn overlaps(
        self,
        classes: Option<Self>,
        rank: &[u32],
        ids: (&Ids, &Ids),
    ) -> Vec<Overlap> {
        let instances = self.overlap_of_instances(rank, ids);
        let classes = classes.and_then(Self::overlap_of_classes);
        instances.into_iter().chain(classes).collect()
    }

    /// The overlap with the instances of the annotations; `None` without gold. `rank` has the final numbers of those that
    /// were read; `instances` has further ones, which gold that trains has added.
    fn overlap_of_instances(
        self,
        rank: &[u32],
        (instances, annotators): (&Ids, &Ids),
    ) -> Option<Overlap> {
        let Self { n, missing, .. } = self;
        let is_exchanged =
            missing.len() == n && missing.first().next().is_some_and(|id| has(annotators, id));
        // Without a missing value nothing is compared.
        let mut is_read = Vec::new();
        if !missing.is_empty() {
            is_read.resize(instances.len(), false);
            let positions = rank.iter().filter(|position| **position != NULL);
            positions.for_each(|position| is_read[*position as usize] = true);
        }
        let read = (0..is_read.len()).filter(|i| is_read[*i]).map(|i| instances.text(i));
        let known = ("the annotations", rank.len(), read);
        let overlap = Overlap::new("instance", ("gold", n, missing), known);
        (n > 0).then(|| if is_exchanged { overlap.advise(EXCHANGED) } else { overlap })
    }

    /// The overlap with the labels that annotators gave; `None` without gold.
    fn overlap_of_classes(self) -> Option<Overlap> {
        let Self { n, missing, used, n_used } = self;
        let known = ("the labels of the annotations", n_used, used.into_iter());
        let overlap = Overlap::new("class", ("gold", n, missing), known);
        (n > 0).then(|| {
            overlap.advise(
                "are these the right columns? if both are right, list all classes in frame.classes",
            )
        })
    }
}

/// Checks that gold is of instances that were read and of classes that annotators gave; `gold` has the rows of each
/// frame. Warns of gold that is of others.
///
/// # Errors
/// When no question's gold is of such instances, or of such classes.
pub(super) fn check_gold(
    frames: &[Frame],
    gold: &[Option<GoldRows>],
    job: &mut JobContext,
) -> Result<()> {
    // Otherwise each row holds for all questions, of which one may lack its instance.
    let is_of_question = frames.len() == 1 || gold.iter().flatten().any(GoldRows::has_questions);
    for what in ["instance", "class"] {
        let overlaps = frames.iter().flat_map(|frame| {
            frame.gold_overlaps.iter().filter(|o| o.is_of(what)).map(move |o| (frame, o))
        });
        let overlaps: Vec<(&Frame, &Overlap)> = overlaps.collect();
        // A single class that nobody gave may be what gold is for.
        let is_lost = |overlap: &Overlap| {
            overlap.is_empty()
                && (what == "instance" || overlap.n_given() > 1 || overlap.is_misspelled())
        };
        if let Some((frame, first)) = overlaps.first()
            && overlaps.iter().all(|(_, overlap)| is_lost(overlap))
        {
            let subject = frame.subject().filter(|_| frames.len() > 1);
            return Err(first.error().at("source.gold").about_some(subject));
        }
        for (frame, overlap) in overlaps {
            if is_of_question || (what == "instance" && overlap.is_empty()) {
                job.warn_about_question(frame.subject());
                warn_of(overlap, job);
                job.warn_about(None);
            }
        }
    }
    Ok(())
}

/// Warns of labels that are not in `frame.classes`, whose rows are rejected.
pub(super) fn warn_of_unlisted_labels(frames: &[Frame], job: &mut JobContext) {
    for frame in frames {
        job.warn_about_question(frame.subject());
        frame.listed.iter().for_each(|overlap| warn_of(overlap, job));
        job.warn_about(None);
    }
}

fn warn_of(overlap: &Overlap, job: &mut JobContext) {
    if let Some(warning) = overlap.warning() {
        job.warn_code(WarningCode::TablesPartlyMatch, warning);
    }
}

/// The overlap of the annotated instances, none of which has features, with the `described` ones.
pub(super) fn instances_without_features(frame: &Frame, with_features: &Ids) -> Overlap {
    let overlap = without_features((&frame.instances, with_features, "instance"), "the features");
    let is_exchanged = !with_features.is_empty() && has(&frame.annotators, &with_features.text(0));
    if is_exchanged { overlap.advise(EXCHANGED) } else { overlap }
}

/// The overlap of ids of the annotations, none of which has features.
pub(super) fn without_features(
    (annotated, with_features, what): (&Ids, &Ids, &'static str),
    features: &'static str,
) -> Overlap {
    let unknown = (0..annotated.len()).map(|n| annotated.text(n)).collect();
    let known = (0..with_features.len()).map(|n| with_features.text(n));
    Overlap::new(
        what,
        ("the annotations", annotated.len(), unknown),
        (features, with_features.len(), known),
    )
}

/// The most ids among which one is looked for.
const MAX_SEARCHED: usize = 100_000;

fn has(ids: &Ids, id: &str) -> bool {
    (0..ids.len().min(MAX_SEARCHED)).any(|n| ids.text(n) == id)
}
