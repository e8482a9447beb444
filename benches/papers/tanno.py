"""Simulated annotators of pictures, as in Tanno et al. 2019."""

import itertools
import json
import re
from functools import partial
from pathlib import Path

from .lab import Lab, Measured, figure, network, table
from .pictures import Pictures, pictures

EPOCHS = 10
# Matrices learn within few epochs only at a higher rate than that of the classifier.
RATE = "train.optimiser.annotator_learning_rate = 0.03\ntrain.optimiser.annotator_delay = 0"
TRACE = 'kind = "trace_regularised"'
ORACLE = "matrices known"
# (row, lines of [model], the paper's accuracies on CIFAR-10 and errors: dense, then one label a picture)
MODELS = [
    (ORACLE, f"{TRACE}\nknown_confusion = true", ("", "", "", "")),
    ("trace", f"{TRACE}\n{RATE}", ("81.2", "0.7", "77.7", "1.2")),
    ("without trace", f"{TRACE}\nlambda = 0.0\n{RATE}", ("80.3", "1.4", "76.3", "1.5")),
    ("mbem", 'kind = "mbem"', ("73.3", "2.5", "56.0", "4.6")),
    ("gem", 'kind = "gem"\nsmoothing = 0.01', ("70.5", "6.1", "53.4", "4.5")),
    ("single_confusion", f'kind = "single_confusion"\n{RATE}', ("68.8", "", "59.9", "")),
    ("weighted_doctor_net", 'kind = "weighted_doctor_net"', ("60.1", "", "58.0", "")),
    ("soft_bootstrap", 'kind = "soft_bootstrap"', ("54.7", "", "42.9", "")),
    ("dl", 'kind = "dl"', ("52.3", "", "36.0", "")),
]
CROWDS = [
    (f"{name} {p}", "tanno-mnist", {"annotator": annotator, "p": p, "valid": 0})
    for name, annotator in (("flippers", "pairwise-flipper"), ("hammer-spammers", "hammer-spammer"))
    for p in (0.3, 0.35)
]
COLOUR = [("four habits", "tanno-cifar", {"valid": 0})]
# Averaged over the annotators, a label is more probable given its own class than given any other: the theorem's condition.
DOMINANT = """
WITH cells AS (SELECT class, label, avg(probability) AS p FROM t GROUP BY class, label)
SELECT min(own.p - other.p) AS gap FROM cells own JOIN cells other ON other.label = own.label
WHERE own.class = own.label AND other.class <> own.label"""
FAILS_BELOW = 80.0
WITHOUT_GOLD = 10
"""Crowds of one label a picture that the trace learns from without gold, at least."""


def crowds(lab: Lab, shown: Pictures, recipe: str, settings: dict, labels: str, count: int) -> list[Path]:
    """The first crowds that fulfil the theorem's condition."""
    found: list[Path] = []
    for seed in itertools.count(1):
        crowd = lab.simulate(recipe, {**settings, "labels": labels}, seed, truth=shown.truth)
        if lab.rows(DOMINANT, t=crowd / "true_confusion")[0]["gap"] > 0:
            found.append(crowd)
        if len(found) == count:
            return found


def relations(crowd: Path, shown: Pictures, gold: str) -> dict[str, object]:
    return {
        "annotations": crowd / "annotations", "features": shown.features, "columns.features": "pixels",
        "gold": shown.held, "sql.gold": f"SELECT instance_id, class, role FROM gold WHERE {gold}",
    }  # fmt: skip


def measure(lab: Lab, shown: Pictures, title: str, model: str, drawn: list[Path], draw: int) -> Measured:
    """Accuracy and error of the matrices, in percent."""
    crowd = drawn[draw - 1]
    source, lines = relations(crowd, shown, "true"), network(model, shown.backbone, EPOCHS, "valid")
    if title == ORACLE:
        with lab.fit({**source, "confusion": crowd / "true_confusion"}, lines, draw) as run:
            return lab.accuracy(run), None
    with lab.fit(source, lines, draw) as run:
        error = lab.scores(run, crowd / "truth", crowd / "true_confusion").get("confusion_error")
        return lab.accuracy(run), None if error is None else 100 * error


def without_gold(lab: Lab, shown: Pictures, crowd: Path, seed: int) -> tuple[float, list[str]]:
    """The accuracy of the trace where no gold chooses the epoch, and the warnings that a user sees."""
    model = network(f"{TRACE}\n{RATE}", shown.backbone, EPOCHS)
    with lab.fit(relations(crowd, shown, "role = 'holdout'"), model, seed) as run:
        return lab.accuracy(run), json.loads(lab.rows("SELECT warnings FROM run", run)[0]["warnings"])


def failures(lab: Lab, shown: Pictures, regimes: list[tuple], drawn: list[list[Path]]) -> str:
    """How often the trace fails without gold, and what it says then."""
    single = [(regime, own) for regime, own in zip(regimes, drawn) if regime[1] == "one"]
    fits = [
        [lab.pool.submit(without_gold, lab, shown, crowd, draw) for draw, crowd in enumerate(own, 1)] for _, own in single
    ]
    text = ""
    for (((name, *_), _), _), fitted in zip(single, fits):
        results = [fit.result() for fit in fitted]
        failed = [texts for accuracy, texts in results if accuracy < FAILS_BELOW]
        seen = sorted({re.sub(r"\d[\d.]*", "N", warning.split(":")[0]) for texts in failed for warning in texts})
        accuracies = figure(accuracy for accuracy, _ in results)
        text += f"- {name}: {accuracies}; {len(failed)} of {len(results)} fail"
        text += f", and the user sees: {'; '.join(seen) or 'no warning'}.\n" if failed else ".\n"
    return text


def tanno(lab: Lab) -> str:
    shown = pictures(lab, 3)
    regimes = list(itertools.product(COLOUR if shown.is_colour else CROWDS, ("dense", "one")))
    most = max(lab.draws, WITHOUT_GOLD)
    drawn = [
        crowds(lab, shown, recipe, settings, labels, most if labels == "one" else lab.draws)
        for (_, recipe, settings), labels in regimes
    ]
    waits = []
    for title, model, paper in MODELS:
        papers = [paper[:2], paper[2:]] if shown.is_colour else [()] * len(regimes)
        waits.append([
            lab.cell(title, partial(measure, lab, shown, title, model, own), *beside) for own, beside in zip(drawn, papers)
        ])  # fmt: skip
    rows = [[title, *(wait() for wait in own)] for (title, *_), own in zip(MODELS, waits)]
    return f"""## Tanno et al.: simulated annotators

{shown.about()}. Accuracy of the classifier on the test
pictures, then the error of the confusion matrices (squared, averaged over annotators and divided by the number of classes)
times 100, where a kind has them: means over {lab.draws} crowds and half of their 95 % intervals. `dense`: all annotators label
every picture; `one`: one of them each. The paper's figures of MNIST are curves only; theirs of CIFAR-10 are shown beside ours
where its pictures are given. A flipper gives the true class with probability p, else always the same other one; a
hammer-spammer knows it with probability p, else guesses. Crowds of flippers are the first in which, on average, every label is
given more often to its own class than to any other. All have one hidden layer of 128 and {EPOCHS} epochs, of which gold chooses
(`gem` keeps the last). With known matrices the classifier learns through them (`known_confusion`).

{table(["", *(f"{name}, {labels}" for (name, *_), labels in regimes)], rows)}{lab.footnotes()}
The trace without gold, at its last epoch, from one label a picture; below {FAILS_BELOW:.0f} % it has failed:

{failures(lab, shown, regimes, drawn)}"""
