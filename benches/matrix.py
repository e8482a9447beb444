#!/usr/bin/env python3
"""Accuracy, log-loss, ECE, seconds and warnings of every label-only kind on every data set, as Markdown.

    cargo build --release
    benches/matrix.py measure target/release/labelmill --data <folder of the datasets> > matrix.json
    benches/matrix.py table matrix.json > docs/matrix.md

A data set is a folder with annotations.parquet and truth.parquet. `crowd_100` is simulated: 50 000 instances of 100 classes,
one annotation each, 519 annotators who are right on .3, .6 or .9 of their instances, or else guess.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

VOTE = "majority_vote"
SIMULATED = "crowd_100"
GROUPS = "groups=173*hammer-spammer(0.3), 173*hammer-spammer(0.6), 173*hammer-spammer(0.9)"
# A fit that takes longer is given up.
MAX_SECONDS = 60
# A kind that is further below the vote than this must say so.
MARGIN = 0.01


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def simulated(binary: str, folder: str) -> tuple[str, str]:
    """The annotations and the truth of the simulated crowd."""
    rng, truth = random.Random(0), Path(folder) / "truth.csv"
    rows = (f"i{n:05},c{rng.randrange(100):02}\n" for n in range(50_000))
    truth.write_text("instance_id,label\n" + "".join(rows))
    crowd = f"{folder}/crowd"
    simulate = ["simulate", "--truth", str(truth), "--recipe", "groups", "--output", crowd, "-q"]
    output_of(binary, *simulate, "--set", GROUPS, "--set", "redundancy=1")
    return f"{crowd}/annotations", str(truth)


def measured(binary: str, kind: str, annotations: str, truth: str) -> dict:
    """The measures of one fit with the defaults; why, where the kind refuses the data."""
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        command = [binary, "aggregate", "--annotations", annotations, "--model", kind, "--output", run, "-q", "--json"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAX_SECONDS)
        except subprocess.TimeoutExpired:
            return {"refused": f"more than {MAX_SECONDS} s"}
        if done.returncode != 0:
            return {"refused": done.stderr.splitlines()[0].removeprefix("error: ")}
        summary = json.loads(done.stdout)
        scores = json.loads(output_of(binary, "evaluate", "--run", run, "--truth", truth, "--json"))
        if isinstance(scores, list):
            scores = {score["name"]: score["value"] for score in scores}
        seconds = json.loads(output_of(binary, "sql", "--run", run, "--json", "-c", "SELECT seconds_fitting FROM run"))
    names = ["accuracy", "accuracy_expected_ties", "log_loss", "ece"]
    found = {name: scores.get(name) for name in names}
    return {**found, "seconds": seconds["seconds_fitting"], "warnings": summary["warnings"]}


def label_only(binary: str) -> list[str]:
    """The kinds that look at no features and need no other table."""
    kinds = json.loads(output_of(binary, "models", "--json"))
    own = [kind for kind in kinds if kind["capabilities"]["confusion"] != "needed"]
    return [kind["kind"] for kind in own if kind["capabilities"]["features"] == "unused"]


def measure(binary: str, data: Path, kinds: list[str] | None) -> None:
    """Prints the measures of each data set and kind as JSON."""
    kinds = [VOTE, *(kind for kind in kinds or label_only(binary) if kind != VOTE)]
    folders = sorted(path.parent for path in data.glob("*/annotations.parquet"))
    sets = {f.name: (str(f / "annotations.parquet"), str(f / "truth.parquet")) for f in folders}
    sets = {name: files for name, files in sets.items() if Path(files[1]).exists()}
    with tempfile.TemporaryDirectory() as folder:
        sets[SIMULATED] = simulated(binary, folder)
        found = {}
        for name, files in sets.items():
            found[name] = {kind: measured(binary, kind, *files) for kind in kinds}
            print(name, file=sys.stderr)
    json.dump(found, sys.stdout, indent=1)


def code(warning: str) -> str:
    """The code of a warning; without one, its first words."""
    found = re.search(r"\[([a-z_]+)\]$", warning)
    return found[1] if found else " ".join(warning.split()[:6])


def cells(found: dict, vote: float, is_vote: bool) -> list[str]:
    if "refused" in found:
        said = found["refused"] if found["refused"].startswith("more") else f"refused: {found['refused']}"
        return ["", "", "", "", said.replace("|", " ")]
    accuracy = found["accuracy_expected_ties" if is_vote else "accuracy"]
    # Accuracies have one digit here: a gap that is shown as one point is none.
    below = " **<**" if accuracy < vote - MARGIN - 5e-4 else ""
    warnings = ", ".join(dict.fromkeys(code(warning) for warning in found["warnings"]))
    return [
        f"{100 * accuracy:.1f}{below}",
        f"{found['log_loss']:.2f}",
        f"{found['ece']:.3f}",
        f"{found['seconds']:.2f}",
        warnings.replace("|", " "),
    ]


def table(file: Path) -> None:
    """Prints a table for each data set."""
    sets = json.loads(file.read_text())
    print("# Label-only kinds on all data sets\n")
    print("**Your task: you want to choose a kind by its results on data like yours.** Written by `benches/matrix.py`, with the defaults of each kind.")
    print("Accuracy is in percent, that of the vote with expected ties; **<** marks one that is more than a point below the")
    print("vote. Seconds are those of the fit. A warning is named by its code ([outputs](outputs.md) explains them).")
    silent = []
    for name, of_kinds in sets.items():
        vote = of_kinds[VOTE]["accuracy_expected_ties"]
        print(f"\n## {name}\n\n| kind | accuracy | log-loss | ECE | s | warnings |\n|{' --- |' * 6}")
        for kind, found in of_kinds.items():
            row = cells(found, vote, kind == VOTE)
            if "<" in row[0] and not row[-1]:
                silent.append(f"{name} by `{kind}`")
            print(f"| `{kind}` | {' | '.join(row)} |")
    print("\n## Below the vote without a warning\n")
    print("Without gold, nothing in these tables shows that the vote is better:\n")
    print("; ".join(silent) + "." if silent else "None.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_measure = commands.add_parser("measure", help="measure a binary; JSON on stdout")
    of_measure.add_argument("binary", help="path of labelmill")
    of_measure.add_argument("--data", default=os.environ.get("LABELMILL_DATA"), help="folder of the datasets")
    of_measure.add_argument("--kinds", nargs="+", help="left out, all label-only kinds")
    of_table = commands.add_parser("table", help="print the measures as Markdown")
    of_table.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "table":
        table(arguments.file)
    elif arguments.data is None:
        parser.error("give --data, or set LABELMILL_DATA")
    else:
        measure(arguments.binary, Path(arguments.data), arguments.kinds)


if __name__ == "__main__":
    main()
