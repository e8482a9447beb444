#!/usr/bin/env python3
"""MNIST with five simulated pairwise flippers and one label an image (Tanno et al. 2019), as Markdown.

    cargo build --release && export LABELMILL_DATA=<folder of the datasets>
    benches/mnist.py --epochs 40 --rates 0.001 > benches/mnist.md
    benches/mnist.py --epochs 5 --rates 0.01 0.03 --append >> benches/mnist.md
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Model:
    """A row of the table, and the settings that the validation images choose from."""

    title: str
    kind: str
    weights: tuple[float | None, ...]
    """The weights of the trace to try; None for a model without a trace."""
    has_rate: bool = True
    """Whether its confusion matrices have a learning rate of their own."""
    has_matrices: bool = True
    """Whether it has a confusion matrix for each annotator."""


MODELS = (
    Model("trace_regularised", "trace_regularised", (0.001, 0.01, 0.1)),
    Model("the same without the trace", "trace_regularised", (0.0,)),
    Model("single_confusion", "single_confusion", (None,), has_matrices=False),
    Model("dl, the labels as they are", "dl", (None,), has_rate=False, has_matrices=False),
)
PIPELINE = """
seed = {seed}
[source]
annotations = "{crowd}/annotations"
features = "{data}/mnist/features.parquet"
gold = "{data}/mnist/truth.parquet"
columns = {{ features = "pixels" }}
[source.sql]
gold = '''
SELECT instance_id, label AS class, CASE split WHEN 'test' THEN 'holdout' ELSE 'valid' END AS role
FROM gold WHERE split = 'test' OR {valid}
'''
[sink]
url = "{out}"
tables = ["labels", "classes", "confusion_matrices", "metrics", "run"]
[model]
kind = "{kind}"
{weight}
[model.backbone]
hidden = [512]
[model.train]
epochs = {epochs}
select = "valid"
{optimiser}
"""
OPTIMISER = """
[model.train.optimiser]
annotator_learning_rate = {rate}
annotator_delay = 0
"""
HEAD = """\
# MNIST with five pairwise flippers, one label an image: {epochs} epochs, matrices learning at {rates}

`benches/mnist.py --seeds {seeds} --epochs {epochs} --rates {words}`, {version}, commit {commit}, {machine}, CPU. A
flipper gives the true digit with probability p, else always the same other one. As in the paper, a tenth of the training
images is held out with its gold; it chooses the epoch, the weight of the trace (lambda) and, of several, the learning
rate of the matrices, for every model and crowd. The classifier learns at 0.001. Test accuracy of the classifier, in
percent, and the squared error of the confusion matrices (summed, over annotators and classes) times 100: mean and
deviation over the first crowds in which, on average, every label is given more often to its own class than to any other.
"""
SHORT_HEAD = """\
# MNIST with five pairwise flippers, one label an image: {epochs} epochs, matrices learning at {rates}

`benches/mnist.py --seeds {seeds} --epochs {epochs} --rates {words} --append`, {version}, commit {commit}, {machine}, CPU. All
else is as above.
"""
VALID = "instance_id LIKE '%0'"
TRUTH = f"COPY (SELECT instance_id, label AS class FROM truth WHERE split = 'train' AND NOT {VALID}) TO '{{}}'"
DOMINANT = """
WITH cells AS (SELECT class, label, avg(probability) AS p FROM t GROUP BY class, label)
SELECT min(own.p - other.p) AS gap FROM cells own JOIN cells other ON other.label = own.label
WHERE own.class = own.label AND other.class <> own.label"""
ACCURACY = "SELECT split, value FROM metrics WHERE name = 'prediction_accuracy' AND split IN ('valid', 'holdout')"


def call(*command: object) -> str:
    return subprocess.check_output([str(word) for word in command], text=True)


def crowds(args: argparse.Namespace, folder: Path, p: float) -> list[tuple[int, Path]]:
    """The first crowds that are identifiable: averaged over the annotators, every label is more probable given its own
    class than given any other (the condition of the paper's theorem)."""
    found = []
    for seed in itertools.count(1):
        crowd = folder / f"crowd-{p}-{seed}"
        # The truth already lacks the validation images.
        settings = ["annotator=pairwise-flipper", "labels=one", "valid=0", f"p={p}"]
        words = [word for setting in settings for word in ("--set", setting)]
        truth = folder / "train.parquet"
        call(args.labelmill, "simulate", "--truth", truth, "--recipe", "tanno-mnist", *words, "--seed", seed,
             "--output", crowd)
        query = json.loads(call(args.labelmill, "sql", "--table", f"t={crowd}/true_confusion", "--json", "-c", DOMINANT))
        if query["gap"] > 0:
            found.append((seed, crowd))
        if len(found) == args.seeds:
            return found


@dataclass(frozen=True)
class Found:
    """The result of one setting, in percent."""

    valid: float
    test: float
    error: float | None
    weight: float | None
    rate: float


def measure(
    args: argparse.Namespace, folder: Path, seed: int, crowd: Path, model: Model, weight: float | None, rate: float
) -> Found:
    folder = Path(tempfile.mkdtemp(dir=folder))
    out, file = folder / "out", folder / "pipeline.toml"
    trace = "" if weight is None else f"lambda = {weight}"
    optimiser = OPTIMISER.format(rate=rate) if model.has_rate else ""
    file.write_text(PIPELINE.format(
        seed=seed, crowd=crowd, data=args.data, out=out, kind=model.kind, weight=trace, epochs=args.epochs,
        optimiser=optimiser, valid=VALID,
    ))  # fmt: skip
    call(args.labelmill, "run", file, "-q")
    lines = call(args.labelmill, "sql", "--run", out, "--json", "-c", ACCURACY).splitlines()
    accuracy = {row["split"]: 100 * row["value"] for row in map(json.loads, lines)}
    error = None
    if model.has_matrices:
        scores = call(args.labelmill, "evaluate", "--run", out, "--truth", crowd / "truth",
                      "--confusion", crowd / "true_confusion", "--json")
        error = 100 * json.loads(scores)["confusion_error"]
    return Found(accuracy["valid"], accuracy["holdout"], error, weight, rate)


def cell(values: list[float | None]) -> str:
    if None in values:
        return ""
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def setting(model: Model, f: Found) -> str:
    words = [] if f.weight is None else [f"lambda {f.weight}"]
    return ", ".join([*words, f"rate {f.rate}"] if model.has_rate else words)


def rows(p: float, model: Model, crowds: list[list[Found]]) -> tuple[str, list[str]]:
    """The lines of both tables; `crowds` holds, for each crowd, the results of all settings in the same order."""

    def line(found: list[Found], last: str) -> str:
        accuracy, error = cell([f.test for f in found]), cell([f.error for f in found])
        return f"| {p} | {model.title} | {accuracy} | {error} | {last} |"

    chosen = [max(found, key=lambda f: f.valid) for found in crowds]
    counts = sorted(Counter(setting(model, f) for f in chosen).items())
    first = line(chosen, "; ".join(f"{what} ({n})" for what, n in counts if what))
    settings = list(zip(*crowds)) if len(crowds[0]) > 1 else []
    return first, [line(found, setting(model, found[0])) for found in settings]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("LABELMILL_DATA"), help="folder of the datasets")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--labelmill", default=str(target / "release" / "labelmill"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.03], help="of the confusion matrices")
    parser.add_argument("--append", action="store_true", help="print the second part of a page, without the method")
    args = parser.parse_args()
    commit = call("git", "-C", ROOT, "describe", "--always", "--dirty").strip()
    outcomes = []
    # One fit per core, because small matrix products do not keep several cores busy.
    os.environ["RAYON_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as pool:
        folder = Path(name)
        query = TRUTH.format(folder / "train.parquet")
        call(args.labelmill, "sql", "--write", "--table", f"truth={args.data}/mnist/truth.parquet", "-c", query)
        for p in (0.3, 0.35):
            drawn = crowds(args, folder, p)
            for model in MODELS:
                settings = list(itertools.product(model.weights, args.rates if model.has_rate else args.rates[:1]))
                fits = [[pool.submit(measure, args, folder, *crowd, model, *chosen) for chosen in settings]
                        for crowd in drawn]  # fmt: skip
                found = [[fit.result() for fit in crowd] for crowd in fits]
                outcomes.append(rows(p, model, found))
                print(outcomes[-1], file=sys.stderr, flush=True)
    version = call(args.labelmill, "--version").strip()
    if args.append:
        print()
    print((SHORT_HEAD if args.append else HEAD).format(
        seeds=args.seeds, epochs=args.epochs, rates=" or ".join(map(str, args.rates)),
        words=" ".join(map(str, args.rates)), version=version, commit=commit, machine=platform.machine(),
    ))  # fmt: skip
    print("| p | model | accuracy | error of the matrices | chosen (crowds) |\n| --- | --- | --- | --- | --- |")
    print("\n".join(chosen for chosen, _ in outcomes))
    print("\nEvery setting of the models with several, over the same crowds:\n")
    print("| p | model | accuracy | error of the matrices | setting |\n| --- | --- | --- | --- | --- |")
    print("\n".join(line for _, every in outcomes for line in every))


if __name__ == "__main__":
    main()
