"""Compares one training epoch of CoNAL in labelmill with one of the dense form in PyTorch.

Both sides have the same data, network, batches and optimiser, and two threads. An
epoch's time is the median of a run's epochs after the first.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import pyarrow.parquet as pq
import torch

import network_cases as of
from dense_conal import train_torch
from labelmill import Labelmill, default_binary
from measure import ChildFailed, run
from network_cases import CASES, Case, Crowd, Epochs
from peers import print_report
from report import Row, at_least, at_most, machine, show, summary

THREADS = 2
TARGETS = {"labelme": at_least(1), "sparse": at_least(30)}
PEERS = ("torch", "numpy", "pyarrow")
WIDE_RATIO = at_most(1.5)
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
kind = "conal"
auxiliary = {auxiliary}
embedding = {embedding}
lambda = {lambda_}

[model.train]
epochs = {epochs}
batch_size = {batch}

[model.train.optimiser]
rule = "adam"
learning_rate = {rate}
annotator_learning_rate = {rate}
annotator_delay = 0
schedule = "constant"
weight_decay = 0.0

[model.backbone]
kind = "mlp"
hidden = [{hidden}]
dropout = {dropout}
batch_norm = false

[sink]
url = {sink}
"""


def train_labelmill(labelmill: Labelmill, case: Case, crowd: Crowd, batch: int) -> Epochs:
    with tempfile.TemporaryDirectory(dir=labelmill.scratch) as name:
        folder = Path(name)
        annotations, features = folder / "annotations.parquet", folder / "features.parquet"
        pipeline, sink = folder / "pipeline.toml", folder / "output"
        crowd.write(annotations, features)
        paths = {"annotations": annotations, "features": features, "sink": sink}
        text = PIPELINE.format(
            **{key: json.dumps(str(path)) for key, path in paths.items()},
            threads=THREADS, epochs=case.epochs, batch=batch, hidden=of.HIDDEN, dropout=of.DROPOUT,
            auxiliary=of.AUXILIARY, embedding=of.EMBEDDING, lambda_=of.LAMBDA,
            rate=of.LEARNING_RATE,
        )  # fmt: skip
        pipeline.write_text(text)
        run(labelmill.binary, "run", pipeline, "--quiet")
        trace = pq.read_table(sink / "latest" / "trace").sort_by("step").to_pydict()
    return Epochs(trace["seconds"], [-objective for objective in trace["objective"]])


def measure(
    what: str, labelmill: Labelmill, case: Case, batch: int, runs: int, dense: bool
) -> Line:
    """Runs both sides in turn and takes the quickest run of each: disturbances only add time."""
    print(f"running: {what}", file=sys.stderr, flush=True)
    crowd = Crowd(case)
    measured: dict[str, list[Epochs]] = {"labelmill": [], "torch": []}
    try:
        for _ in range(runs):
            measured["labelmill"].append(train_labelmill(labelmill, case, crowd, batch))
            if dense:
                measured["torch"].append(train_torch(case, crowd, batch))
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
    if not dense:
        return Row(what, "seconds", seconds), details
    peer = min(taken["torch"])
    all_steps = -(-case.instances // batch)
    if case.peer_steps and case.peer_steps < all_steps:
        what += f" (PyTorch: {case.peer_steps} of {all_steps} steps, scaled up)"
    return Row(what, "seconds", seconds, peer, peer / seconds, TARGETS.get(case.name)), details


def compare(labelmill: Labelmill, scale: float, runs: int, dense_wide: bool) -> list[Line]:
    """The lines of the table; a line that fails does not stop the others."""
    lines, seconds = [], {}
    for case in CASES:
        dense = case.name != "wide" or dense_wide
        for batch in case.batches:
            what = f"{case.name}, batches of {batch}"
            line = measure(what, labelmill, case.scaled(scale), batch, runs, dense)
            seconds[case.name] = line[0].labelmill
            lines.append(line)
    if seconds["sparse"] and seconds["wide"]:
        ratio = seconds["wide"] / seconds["sparse"]
        lines.append((Row("labelmill, wide / sparse", ratio=ratio, target=WIDE_RATIO), {}))
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
        labelmill = Labelmill(options.labelmill.resolve(), Path(folder))
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
    return 1 if any(row.failure for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
