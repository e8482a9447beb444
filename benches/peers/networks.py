"""Compares one training epoch of networks in labelmill with one in PyTorch, on two threads.

CoNAL is compared with its dense form on the same data, and networks for images with the same layers on noise. Both
sides have the same batches and optimiser. An epoch's time is the median of a run's epochs after the first. Exits with 1
where a run fails, or whole crowds miss a target.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow.parquet as pq
import torch

import network_cases as of
from dense_conal import train_torch
from image_networks import epoch_seconds
from labelmill import LabelmillCommand, default_binary
from measure import ChildFailed, run
from network_cases import CASES, IMAGES, Epochs, FeatureCrowd, Images, NetworkCase
from peers import print_report
from report import Row, Target, at_least, at_most, machine, show, summary

THREADS = 2
TARGETS = {
    ("labelme", 64): at_least(2),
    ("labelme", 1024): at_least(1.2),
    ("sparse", 256): at_least(35),
    ("lenet", 128): at_least(1),
    ("vgg16", 128): at_least(1 / 1.5),
}
"""The least ratio of PyTorch's time to labelmill's, by case and batch size."""
WIDE_RATIO = at_most(1.2)
PEERS = ("torch", "numpy", "pyarrow")
DISTURBED = 1.5
"""If runs of one side differ by this factor, other processes disturbed them."""

Line = tuple[Row, dict]
"""A line of the table, and the measurements behind it."""

PIPELINE = """
[source]
annotations = {annotations}
features = {features}

[engine]
threads = {threads}

[model]
{model}

[model.train]
epochs = {epochs}
batch_size = {batch}

[model.train.optimiser]
{annotators}
rule = "adam"
learning_rate = {rate}
schedule = "constant"
weight_decay = 0.0

[sink]
url = {sink}
"""
CONAL = f"""
kind = "conal"
device = "cpu"
auxiliary = {of.AUXILIARY}
embedding = {of.EMBEDDING}
lambda = {of.LAMBDA}
backbone = {{ kind = "mlp", hidden = [{of.HIDDEN}], dropout = {of.DROPOUT}, batch_norm = false }}
"""
CONAL_ANNOTATORS = f"annotator_learning_rate = {of.LEARNING_RATE}\nannotator_delay = 0"


@dataclass(frozen=True)
class EpochComparison:
    """One line of the table: a crowd, the model that labelmill trains on it, and the epoch of PyTorch."""

    what: str
    case: NetworkCase
    batch: int
    model: str
    peer: Callable[[FeatureCrowd], Epochs] | None
    target: Target | None
    annotators: str = ""
    """The settings of parameters of annotators, for a model that trains them."""


def train_labelmill(
    labelmill: LabelmillCommand, crowd: FeatureCrowd, comparison: EpochComparison
) -> Epochs:
    with tempfile.TemporaryDirectory(dir=labelmill.scratch) as name:
        folder = Path(name)
        annotations, features = folder / "annotations.parquet", folder / "features.parquet"
        pipeline, sink = folder / "pipeline.toml", folder / "output"
        crowd.write(annotations, features)
        paths = {"annotations": annotations, "features": features, "sink": sink}
        text = PIPELINE.format(
            **{key: json.dumps(str(path)) for key, path in paths.items()},
            threads=THREADS, model=comparison.model, epochs=comparison.case.epochs,
            batch=comparison.batch, rate=of.LEARNING_RATE, annotators=comparison.annotators,
        )  # fmt: skip
        pipeline.write_text(text)
        run(labelmill.binary, "run", pipeline, "--quiet")
        trace = pq.read_table(sink / "latest" / "trace").sort_by("step").to_pydict()
    epochs = [n for n, phase in enumerate(trace["phase"]) if phase == "train"]
    return Epochs(
        [trace["seconds"][n] for n in epochs], [-trace["objective"][n] for n in epochs]
    )


def measure(labelmill: LabelmillCommand, comparison: EpochComparison, runs: int) -> Line:
    """Runs both sides in turn and takes the quickest run of each: disturbances only add time."""
    what, case, batch = comparison.what, comparison.case, comparison.batch
    print(f"running: {what}", file=sys.stderr, flush=True)
    crowd = FeatureCrowd(case)
    measured: dict[str, list[Epochs]] = {"labelmill": [], "torch": []}
    try:
        for _ in range(runs):
            measured["labelmill"].append(train_labelmill(labelmill, crowd, comparison))
            if comparison.peer:
                measured["torch"].append(comparison.peer(crowd))
    except ChildFailed as failure:
        print(failure, file=sys.stderr)
        return Row(what, failure=str(failure)), {}
    details = {"case": asdict(case), "batch": batch}
    for side, epochs in measured.items():
        details[side] = [asdict(epoch) for epoch in epochs]
    taken = {side: [e.steady_seconds() for e in epochs] for side, epochs in measured.items()}
    details["disturbed"] = [
        f"{what}: {side}'s runs took {show(min(runs), 'seconds')} to {show(max(runs), 'seconds')}"
        for side, runs in taken.items()
        if runs and max(runs) > DISTURBED * min(runs)
    ]
    seconds = min(taken["labelmill"])
    if not comparison.peer:
        return Row(what, "seconds", seconds), details
    peer = min(taken["torch"])
    all_steps = -(-case.instances // batch)
    if case.peer_steps and case.peer_steps < all_steps:
        what += f" (PyTorch: {case.peer_steps} of {all_steps} steps, scaled up)"
    return Row(what, "seconds", seconds, peer, peer / seconds, comparison.target), details


def of_conal(case: NetworkCase, batch: int, scale: float, dense: bool) -> EpochComparison:
    scaled = case.scaled(scale)
    peer = (lambda crowd: train_torch(scaled, crowd, batch)) if dense else None
    what, target = f"{case.name}, batches of {batch}", TARGETS.get((case.name, batch))
    return EpochComparison(what, scaled, batch, CONAL, peer, target, CONAL_ANNOTATORS)


def of_images(images: Images, scale: float) -> EpochComparison:
    case, batch = images.case(scale), images.batch

    def peer(_: FeatureCrowd) -> Epochs:
        rows, epochs = case.instances, case.epochs
        return Epochs(epoch_seconds(images.kind, images.shape, rows, batch, epochs, "cpu"), [])

    model = (
        f'kind = "dl"\ndevice = "cpu"\n'
        f'backbone = {{ kind = "{images.kind}", input = {list(images.shape)} }}'
    )
    size = " x ".join(map(str, images.shape))
    what = f"{images.kind}, {case.instances} images of {size}, batches of {batch}"
    return EpochComparison(what, case, batch, model, peer, TARGETS.get((images.kind, batch)))


def compare(labelmill: LabelmillCommand, scale: float, runs: int, dense_wide: bool) -> list[Line]:
    """The lines of the table; a line that fails does not stop the others."""
    lines, seconds = [], {}
    for case in CASES:
        dense = case.name != "wide" or dense_wide
        for batch in case.batches:
            line = measure(labelmill, of_conal(case, batch, scale, dense), runs)
            seconds[case.name] = line[0].labelmill
            lines.append(line)
    if seconds["sparse"] and seconds["wide"]:
        ratio = seconds["wide"] / seconds["sparse"]
        lines.append((Row("labelmill, wide / sparse", ratio=ratio, target=WIDE_RATIO), {}))
    lines += [measure(labelmill, of_images(images, scale), runs) for images in IMAGES]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="networks.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--labelmill", type=Path, default=default_binary(), help="the binary")
    parser.add_argument("--runs", type=int, default=3, help="runs to take the best of (default: 3)")
    parser.add_argument("--json", type=Path, help="write all the measurements to this file")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink every crowd, for a trial")
    parser.add_argument(
        "--dense-wide", action="store_true", help="PyTorch on the wide crowd too (many GB)"
    )
    options = parser.parse_args()
    if not options.labelmill.is_file():
        parser.error(f"no labelmill at {options.labelmill}: build a release or name one")
    os.environ["RAYON_NUM_THREADS"] = str(THREADS)
    torch.set_num_threads(THREADS)
    with tempfile.TemporaryDirectory() as folder:
        labelmill = LabelmillCommand(options.labelmill.resolve(), Path(folder))
        host = machine(PEERS) | {"labelmill": labelmill.version(), "threads": THREADS}
        lines = compare(labelmill, options.scale, options.runs, options.dense_wide)
    rows = [row for row, _ in lines]
    if options.json:
        measurements = [summary(row) | measured for row, measured in lines]
        report = {"machine": host, "scale": options.scale, "rows": measurements}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    print_report(host, options.scale, rows)
    if notes := [note for _, details in lines for note in details.get("disturbed", [])]:
        print("Not on an idle machine, so read the ratios with care:", *notes, sep="\n  ")
    # The targets are for whole crowds.
    wrong = {"FAILED", "MISS"} if options.scale == 1 else {"FAILED"}
    return 1 if any(row.verdict() in wrong for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
