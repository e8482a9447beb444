#!/usr/bin/env python3
"""Compares every table that two builds publish from the same jobs, value by value.

    benches/same_tables.py BEFORE AFTER --data <folder of the datasets>

The kinds are those that both builds list. Label-only models run on every dataset that has annotations, models with features
on LabelMe: `gem`, and networks for a few epochs. The table `run` and wall times may differ. A difference is relative to the
largest number of its row, or to 1. A job that both builds refuse alike is named. The exit code is 1 if a difference is
larger than --tolerance, which is 0 for networks.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parent.parent
# The table that describes the run itself: times, versions and paths.
OWN = {"run"}
CLOCK = {"seconds"}  # a column of `trace`


def publish(command: list[str], output: Path) -> dict[str, pa.Table] | str:
    """The tables of a run, or what it says instead."""
    done = subprocess.run([*command, "-q"], capture_output=True, text=True)
    return done.stderr.replace(str(output), "the output") if done.returncode else tables(output)


def aggregate(binary: str, annotations: Path, model: str, output: Path) -> dict[str, pa.Table] | str:
    command = [binary, "aggregate", "--annotations", str(annotations), "--model", model, "--output", str(output)]
    return publish(command, output)


def with_features(binary: str, data: str, model: str, output: Path) -> dict[str, pa.Table] | str:
    source = (ROOT / "pipelines" / "labelme.toml").read_text().split("[model]")[0].rsplit("\n#", 1)[0]
    file = output.parent / "pipeline.toml"
    file.write_text(f"{source}\n[model]\n{model}\n")
    return publish([binary, "run", str(file), "--var", f"data={data}", "--set", f"sink.url={output}"], output)


def kinds(binary: str) -> dict[str, set[str]]:
    """The parameters of each kind of model."""
    models = json.loads(subprocess.check_output([binary, "models", "--json"]))
    return {model["kind"]: set(model["parameters"].get("properties", {})) for model in models}


def tables(output: Path) -> dict[str, pa.Table]:
    folders = [folder for folder in (output / "latest").iterdir() if folder.is_dir()]
    named = {folder.name: sorted(folder.glob("*.parquet")) for folder in folders}
    return {name: pa.concat_tables(map(pq.read_table, files)) for name, files in named.items() if files}


def difference(before: pa.Table, after: pa.Table) -> float | str:
    """The largest difference between two numbers, or a description of another difference."""
    if before.num_rows != after.num_rows:
        return f"{before.num_rows} rows, then {after.num_rows}"
    largest = 0.0
    names = [f.name for f in before.schema if pa.types.is_floating(f.type) and f.name not in CLOCK]
    numbers = [before[name].combine_chunks() for name in names]
    size = pc.max_element_wise(1.0, *map(pc.abs, numbers)) if numbers else None
    for name in before.column_names:
        if name in CLOCK:
            continue
        if name not in after.column_names:
            return f"no column {name} any more"
        a, b = before[name].combine_chunks(), after[name].combine_chunks()
        if pa.types.is_floating(a.type):
            apart = pc.max(pc.divide(pc.abs(pc.subtract(a, b)), size)).as_py() or 0.0
            if a.null_count != b.null_count:
                return f"other nulls in {name}"
            largest = max(largest, apart)
        elif a.to_pylist() != b.to_pylist():
            return f"other values in {name}"
    new = set(after.column_names) - set(before.column_names)
    return f"new columns {sorted(new)}, the rest the same" if new and largest == 0.0 else largest


def compare(job: str, before: dict[str, pa.Table] | str, after: dict[str, pa.Table] | str, tolerance: float) -> bool:
    if isinstance(before, str) or isinstance(after, str):
        said = next(text for text in (after, before) if isinstance(text, str)).splitlines()[0]
        print(f"{'REFUSED' if before == after else 'DIFFERENT':10}{job}: {said}", flush=True)
        return before == after
    same, cells = True, []
    for name in sorted((before.keys() | after.keys()) - OWN):
        if name not in before or name not in after:
            cells.append(f"{name}: only {'after' if name in after else 'before'}")
            same = same and name in after
            continue
        found = difference(before[name], after[name])
        if isinstance(found, str):
            same = same and "the rest the same" in found
            cells.append(f"{name}: {found}")
        elif found > 0.0:
            same = same and found <= tolerance
            cells.append(f"{name}: {found:.1e}")
    print(f"{'ok' if same else 'DIFFERENT':10}{job}: {'; '.join(cells) or 'equal to the bit'}", flush=True)
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--data", default=os.environ.get("LABELMILL_DATA"), help="folder of the datasets")
    parser.add_argument("--tolerance", type=float, default=1e-12)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    binaries = {"before": args.before, "after": args.after}
    of_before, of_after = kinds(args.before), kinds(args.after)
    for kind in sorted(of_before.keys() ^ of_after.keys()):
        print(f"LEFT OUT  {kind}: only {'before' if kind in of_before else 'after'}")
    both = {kind: parameters for kind, parameters in of_after.items() if kind in of_before}
    networks = [kind for kind, parameters in both.items() if "backbone" in parameters]
    tabular = [kind for kind, parameters in both.items() if "classifier" in parameters]
    label_only = [kind for kind in both if kind not in (*networks, *tabular)]
    # A kind that only the later build has is new; one that it has no longer is a difference.
    same = not of_before.keys() - of_after.keys()
    for annotations in sorted(Path(args.data).glob("*/annotations.parquet")):
        for model in label_only:
            with tempfile.TemporaryDirectory() as folder:
                found = [aggregate(binaries[name], annotations, model, Path(folder, name)) for name in binaries]
                same &= compare(f"{annotations.parent.name}, {model}", *found, args.tolerance)
    jobs = [(f"labelme, {kind}", f'kind = "{kind}"', args.tolerance) for kind in tabular]
    for kind in networks:
        model = f'kind = "{kind}"\ntrain.epochs = {args.epochs}'
        jobs.append((f"labelme, {kind}, {args.epochs} epochs", model, 0.0))
    for job, model, tolerance in jobs:
        with tempfile.TemporaryDirectory() as folder:
            found = [with_features(binaries[name], args.data, model, Path(folder, name)) for name in binaries]
            same &= compare(job, *found, tolerance)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
