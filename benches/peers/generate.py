"""Writes one synthetic crowd as Parquet, its annotations in random order."""

from __future__ import annotations

import argparse
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cases import ANNOTATIONS_PER_INSTANCE, CASES, JOB_FORMS, CrowdSize

SEED = 20_240_501
ACCURACY = (0.5, 0.95)
ROW_GROUP = 1_000_000
STRING_IDS = {"instance_id": "i{:07d}", "annotator_id": "a{:05d}", "label": "c{}"}

Codes = dict[str, np.ndarray]
"""For each column, the code of every row's value, counted from 0."""


def deal_annotators(case: CrowdSize, rng: np.random.Generator) -> np.ndarray:
    """The annotators of each instance, as an array [annotation of the instance, instance].

    Every row cycles through its own share of the annotators, in random order, so that no annotator
    gets an instance twice and all of them get some.
    """
    share = case.annotators // ANNOTATIONS_PER_INSTANCE
    hands = np.tile(np.arange(case.instances) % share, (ANNOTATIONS_PER_INSTANCE, 1))
    return rng.permuted(hands, axis=1) + share * np.arange(ANNOTATIONS_PER_INSTANCE)[:, None]


def draw_labels(
    case: CrowdSize, instance: np.ndarray, annotator: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The true class with the annotator's accuracy, else a uniformly drawn other class."""
    truth = rng.integers(case.classes, size=case.instances)[instance]
    accuracy = rng.uniform(*ACCURACY, size=case.annotators)[annotator]
    wrong = rng.random(instance.size) >= accuracy
    shift = rng.integers(1, case.classes, size=instance.size)
    return (truth + wrong * shift) % case.classes


def draw_crowd(case: CrowdSize) -> Codes:
    rng = np.random.default_rng(SEED)
    annotator = deal_annotators(case, rng).ravel()
    instance = np.tile(np.arange(case.instances), ANNOTATIONS_PER_INSTANCE)
    label = draw_labels(case, instance, annotator, rng)
    order = rng.permutation(instance.size)
    return {
        "instance_id": instance[order],
        "annotator_id": annotator[order],
        "label": label[order],
    }


def ids(column: str, count: int, form: str) -> pa.Array:
    """The first `count` values of a column, in the given form."""
    if form == "int64":
        return pa.array(np.arange(count))
    if form == "uuid" and column != "label":
        drawn = np.random.default_rng([SEED, count]).bytes(16 * count)
        parts = (drawn[start : start + 16] for start in range(0, len(drawn), 16))
        return pa.array([str(uuid.UUID(bytes=part, version=4)) for part in parts])
    return pa.array([STRING_IDS[column].format(code) for code in range(count)])


def write_crowd(crowd: Codes, form: str, path: Path) -> None:
    """Writes one row group after another; the file gets its name only when it is complete."""
    values = {column: ids(column, codes.max() + 1, form) for column, codes in crowd.items()}
    schema = pa.schema({column: array.type for column, array in values.items()})
    partial = path.with_suffix(".partial")
    with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for start in range(0, len(crowd["label"]), ROW_GROUP):
            rows = slice(start, start + ROW_GROUP)
            columns = [values[name].take(pa.array(codes[rows])) for name, codes in crowd.items()]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP)
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("form", choices=JOB_FORMS)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()

    case = CASES[options.case].scaled(options.scale)
    options.folder.mkdir(parents=True, exist_ok=True)
    write_crowd(draw_crowd(case), options.form, case.file(options.folder, options.form))


if __name__ == "__main__":
    main()
