"""Fits crowd-kit's Dawid-Skene model and prints the seconds of each fit as JSON."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pandas as pd
from crowdkit.aggregation import DawidSkene

COLUMNS = {"instance_id": "task", "annotator_id": "worker", "label": "label"}
NEVER_CONVERGED = -1e9
"""A tolerance that no step is below, so that a fit makes all its iterations."""
WARM_UP_ROWS = 1_000
"""The rows of a small first fit, which makes the libraries load what they load lazily."""


def timed_fit(annotations: pd.DataFrame, iterations: int) -> tuple[float, DawidSkene]:
    model = DawidSkene(n_iter=iterations, tol=NEVER_CONVERGED)
    start = time.perf_counter()
    model.fit(annotations)
    return time.perf_counter() - start, model


def write_labels(model: DawidSkene, path: Path) -> None:
    labels = model.labels_.rename("label").rename_axis("instance_id")
    labels.reset_index().to_parquet(path, index=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("annotations", type=Path)
    parser.add_argument("iterations", type=int, nargs="+", help="one fit for each number")
    parser.add_argument("--labels", type=Path, help="write the last fit's labels here")
    options = parser.parse_args()

    annotations = pd.read_parquet(options.annotations).rename(columns=COLUMNS)
    timed_fit(annotations.head(WARM_UP_ROWS), iterations=1)
    seconds = []
    for iterations in options.iterations:
        elapsed, model = timed_fit(annotations, iterations)
        seconds.append(elapsed)
    if options.labels:
        write_labels(model, options.labels)
    print(json.dumps({"fit_seconds": seconds}))


if __name__ == "__main__":
    main()
