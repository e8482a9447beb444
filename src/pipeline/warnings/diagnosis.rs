//! Warns of what the data cannot support, as an honest statistician would.

use crate::decide::{DecideSpec, TieSeed};
use crate::diagnose::{Agreement, AnnotatorDependence, ChanceTest, MIN_COMMON, vote};
use crate::error::offenders;
use crate::frame::{Annotations, Frame};
use crate::job_context::{JobContext, WarningCode};
use crate::model::fitted::Fitted;

/// Labels against their annotations are rare accidents below this share.
const MIN_CONTRADICTIONS: f64 = 0.01;

/// A kind changes the label of a quarter of the instances only where few annotators are reliable, or where it is wrong.
const MAX_DIFFERENCE: f64 = 0.25;

/// A loss of more than one point against the vote is more than the kinds differ by chance on a few thousand gold labels.
const MAX_LOSS: f64 = 0.01;

/// Of a difference of one label nothing follows.
const MIN_LOST: f64 = 2.0;

/// Fewer pairs of annotations may agree no better than chance by chance.
const MIN_PAIRS: f64 = 100.0;

/// One of a thousand sets of random labels has a higher z-score.
const MAX_Z_SCORE: f64 = 3.1;

/// The share of pairs whose excess is significant, of which independent annotators have a thousandth. Real crowds that are
/// nearly independent have up to 5 %, 24 LLM judges of one question have 45 %.
const MAX_DEPENDENT: f64 = 0.2;

/// Fewer instances of gold may disagree with the vote by chance.
const MIN_GOLD: f64 = 10.0;

/// The least kappa of gold and vote: that of gold on hard questions is higher, as annotators are better than chance.
const MIN_KAPPA: f64 = 0.2;

/// Annotators who count as fewer than this share of them make posteriors far too certain.
const MIN_EFFECTIVE: f64 = 0.5;

/// A quarter of all annotations by annotators with one each decides many labels.
const MAX_ONE_TIME: f64 = 0.25;

/// Fewer one-time annotators are no pattern.
const MIN_ONE_TIME: usize = 20;

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Kinds that no annotator's own matrix leads astray, without the user's own.
fn safe_kinds(kind: &str) -> String {
    let others = ["majority_vote", "ibcc"].into_iter().filter(|other| *other != kind);
    others.collect::<Vec<_>>().join(" or ")
}

/// Warns of labels that contradict the annotations, and of annotations that agree by chance.
pub(crate) fn warn_of_agreement(
    kind: &str,
    frame: &Frame,
    (found, dependence): (&Agreement, &AnnotatorDependence),
    job: &mut JobContext,
) {
    let Agreement { labelled, given_by_nobody, against_unanimous, differs_from_vote, chance } =
        *found;
    // Where some annotators give the opposite of others, the pattern of pairs tells them apart.
    let is_random = dependence.pattern < MAX_Z_SCORE;
    let by_chance = |c: &ChanceTest| c.pairs >= MIN_PAIRS && c.z_score < MAX_Z_SCORE && is_random;
    if let Some(chance) = chance.filter(by_chance) {
        job.warn_code(
            WarningCode::AgreementByChance,
            format!(
                "annotators agree no better than chance: {} of {} pairs of annotations, where random labels would agree \
                 in {}: labels, confidences and skills say nothing; check that instances and labels belong together",
                percent(chance.observed),
                chance.pairs,
                percent(chance.expected)
            ),
        );
    }
    // A classifier may know better than the annotators.
    if frame.with_features.is_none() && share(given_by_nobody, labelled) >= MIN_CONTRADICTIONS {
        job.warn_code(
            WarningCode::LabelsNobodyGave,
            format!(
                "{given_by_nobody} of {labelled} labels contradict all annotations of their instance: the annotators' \
                 matrices overrule what they say; compare with {}",
                safe_kinds(kind)
            ),
        );
    }
    if frame.with_features.is_none() && share(against_unanimous, labelled) >= MIN_CONTRADICTIONS {
        job.warn_code(
            WarningCode::AgainstUnanimousVote,
            format!(
                "{against_unanimous} of {labelled} labels contradict a unanimous vote of two or more annotators; compare \
                 with {}",
                safe_kinds(kind)
            ),
        );
    }
    if share(differs_from_vote, labelled) > MAX_DIFFERENCE {
        let soft = if is_mostly_soft(&frame.annotations) {
            ", as most annotations are soft, whose parts count as answers of one who is often wrong: compare with \
             majority_vote or one_coin"
        } else {
            ""
        };
        job.warn_code(
            WarningCode::DiffersFromVote,
            format!(
                "{differs_from_vote} of {labelled} labels ({}) differ from the majority vote{soft}; score both on some gold",
                percent(share(differs_from_vote, labelled))
            ),
        );
    }
}

/// Whether most answers of an annotator about an instance name several labels.
fn is_mostly_soft(a: &Annotations) -> bool {
    let (mut soft, mut all) = (0_u64, 0);
    for i in 0..a.dims().instances {
        let mut labels: Vec<(u32, u32)> =
            a.triples_of_instance(i).map(|(r, label, _)| (r, label)).collect();
        labels.dedup();
        for own in labels.chunk_by(|one, next| one.0 == next.0) {
            soft += u64::from(own.len() > 1);
            all += 1;
        }
    }
    2 * soft > all
}

/// Warns where the vote would be right more often on the gold that the model did not see. The vote itself loses only where
/// it abstains.
pub(crate) fn warn_of_loss_to_vote(
    kind: &str,
    (decide, seed): (&DecideSpec, TieSeed),
    frame: &Frame,
    fitted: &Fitted,
    job: &mut JobContext,
) {
    if kind == "majority_vote" {
        return;
    }
    let a = &frame.annotations;
    let (mut n, mut own, mut of_vote) = (0.0, 0.0, 0.0);
    for gold in frame.gold.iter().filter(|gold| !gold.role.trains()) {
        let i = gold.instance as usize;
        let votes = vote(a, i);
        if votes.is_empty() {
            continue;
        }
        n += 1.0;
        own += f64::from(decide.decide(a, fitted, seed, i).class == Some(gold.class));
        of_vote += f64::from(votes.contains(&gold.class)) / votes.len() as f64;
    }
    let lost = of_vote - own;
    if n > 0.0 && lost > MAX_LOSS * n && lost >= MIN_LOST {
        job.warn_code(
            WarningCode::WorseThanVote,
            format!(
                "the labels are right on {} of {n} instances of gold, the majority vote on {}: use majority_vote, or \
                 another kind",
                percent(own / n),
                percent(of_vote / n)
            ),
        );
    }
}

/// Warns of annotators who err together, and of those who are nearly one; `is_calibrated` by gold.
pub(crate) fn warn_of_dependence(
    frame: &Frame,
    found: &AnnotatorDependence,
    is_calibrated: bool,
    job: &mut JobContext,
) {
    let is_dependent = share(found.dependent, found.compared) >= MAX_DEPENDENT
        && found.effective < MIN_EFFECTIVE * found.annotators;
    if is_dependent && !is_calibrated {
        let advice = gold_at_odds(&frame.annotations).unwrap_or_else(|| {
            "calibrate by gold of the role `calibrate` (calibration.method)".to_owned()
        });
        job.warn_code(
            WarningCode::DependentAnnotators,
            format!(
                "annotators err together: {} of {} pairs agree more than their skills explain, so that {:.1} annotators of \
                 an instance count as about {:.1} independent ones (see the table annotator_pairs): confidences are not to \
                 be believed; {advice}",
                found.dependent, found.compared, found.annotators, found.effective
            ),
        );
    }
    if found.near_copies > 0 {
        let copies = found.pairs.iter().filter(|pair| pair.is_near_copy);
        let names = copies.map(|pair| {
            let id = |r: u32| frame.annotators.text(r as usize);
            format!("{} and {}", id(pair.annotator), id(pair.other))
        });
        job.warn_code(
            WarningCode::NearCopies,
            format!(
                "pairs of annotators who give nearly the same labels on {MIN_COMMON} or more instances, more than their \
                 skills explain: {}: {}; each counts twice, so leave one out, or give it the other's id",
                found.near_copies,
                offenders(names)
            ),
        );
    }
}

/// Advice to check the gold that trains, where it agrees with the vote hardly better than by chance: annotators who agree with
/// each other seem to err together, if it is wrong.
fn gold_at_odds(a: &Annotations) -> Option<String> {
    let (mut n, mut agreed) = (0.0, 0.0);
    let mut shares = vec![[0.0; 2]; a.dims().classes];
    for i in 0..a.dims().instances {
        let Some(class) = a.trusted_class(i) else { continue };
        let votes = vote(a, i);
        if votes.is_empty() {
            continue;
        }
        let each = 1.0 / votes.len() as f64;
        n += 1.0;
        agreed += if votes.contains(&class) { each } else { 0.0 };
        shares[class as usize][0] += 1.0;
        votes.iter().for_each(|class| shares[*class as usize][1] += each);
    }
    let by_chance = shares.iter().map(|[gold, votes]| gold * votes).sum::<f64>() / n;
    let is_at_odds = n >= MIN_GOLD && agreed - by_chance < MIN_KAPPA * (n - by_chance);
    is_at_odds.then(|| {
        format!(
            "or the gold that trains is wrong, which agrees with the majority vote on {agreed:.0} of {n} instances, where \
             {by_chance:.0} are expected by chance: check the gold first"
        )
    })
}

/// Warns where many annotations are by annotators of whom nothing can be learned.
pub(crate) fn warn_of_one_time_annotators(kind: &str, frame: &Frame, job: &mut JobContext) {
    let a = &frame.annotations;
    let n = (0..a.dims().annotators).filter(|r| a.rows_of_annotator(*r) == 1).count();
    if n >= MIN_ONE_TIME && n as f64 > MAX_ONE_TIME * a.len() as f64 {
        job.warn_code(
            WarningCode::OneTimeAnnotators,
            format!(
                "{n} of {} annotators gave one annotation each, together {} of all: their skills say nothing; \
                 compare with {}",
                a.dims().annotators,
                percent(n as f64 / a.len() as f64),
                safe_kinds(kind)
            ),
        );
    }
}
