#!/usr/bin/env python3
"""MNIST with five simulated pairwise flippers and one label an image (Tanno et al. 2019), as Markdown.

    cargo build --release && benches/mnist.py --data <folder of the datasets> > benches/mnist.md
"""

import argparse
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
"""
TRUTH = "COPY (SELECT instance_id, label AS class FROM truth WHERE split = 'train') TO '{}'"
ACCURACY = "SELECT value FROM metrics WHERE name = 'prediction_accuracy' AND split = 'holdout'"


def call(*command: object) -> str:
    return subprocess.check_output([str(word) for word in command], text=True)


def measure(args: argparse.Namespace, folder: Path, p: float, seed: int, model: str, is_whole: bool) -> tuple:
    crowd, out = folder / f"crowd-{p}-{seed}", folder / "out"
    if not crowd.exists():
        settings = ["annotator=pairwise-flipper", "labels=one", f"p={p}"]
        words = [word for setting in settings for word in ("--set", setting)]
        truth = folder / "train.parquet"
        call(args.labelmill, "simulate", "--truth", truth, "--recipe", "tanno-mnist", *words, "--seed", seed,
             "--output", crowd)
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
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    commit = call("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    print("# MNIST with five pairwise flippers, one label an image\n")
    print(f"`benches/mnist.py --seeds {args.seeds} --epochs {args.epochs}`, {call(args.labelmill, '--version').strip()},")
    print(f"commit {commit}, {platform.machine()}, CPU. A flipper says the true digit with probability p, else always the")
    print("same other one. Test accuracy of the classifier at the last epoch, in percent, and the squared error of the")
    print("confusion matrices (summed, over annotators and classes) times 100: mean and deviation over the seeds, each of")
    print("which draws another crowd.\n")
    print("| p | model | accuracy | error of the matrices |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        query = TRUTH.format(folder / "train.parquet")
        call(args.labelmill, "sql", "--table", f"truth={args.data}/mnist/truth.parquet", "-c", query)
        for p in (0.3, 0.35):
            for title, model, is_whole in MODELS:
                found = [measure(args, folder, p, seed, model, is_whole) for seed in range(1, args.seeds + 1)]
                accuracies, errors = zip(*found)
                print(f"| {p} | {title} | {cell(accuracies)} | {cell(errors)} |", flush=True)


main()
