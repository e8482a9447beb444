#!/usr/bin/env python3
"""The papers' experiments: a table with the papers' figures beside ours, printed and written to docs/papers.md.

    cargo build --release && export LABELMILL_DATA=<folder of the datasets>
    benches/papers.py lia            # LIA, table 2: accuracy by redundancy
    benches/papers.py labelme        # TCL and CoNAL: LabelMe, whole

The flippers of Tanno et al. have a script of their own, `benches/mnist.py`.
"""

import argparse
import csv
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "papers.md"


def output_of(*command: str) -> str:
    one_thread = {**os.environ, "RAYON_NUM_THREADS": "1"}
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=one_thread).stdout


def known_kinds(binary: str) -> set[str]:
    return {kind["kind"] for kind in json.loads(output_of(binary, "models", "--json"))}


def cell(values: list[float], paper: str) -> str:
    """The mean with half of its 95 % interval, and the paper's figure."""
    ours = f"{statistics.mean(values):.1f}"
    if len(values) > 1:
        ours += f" ± {1.96 * statistics.stdev(values) / math.sqrt(len(values)):.1f}"
    return f"{ours} ({paper})" if paper else ours


# ---- LIA, table 2 ----------------------------------------------------------------------------------------------------

# (column, kind, settings, whether it reads features; then the paper's figures by data set and redundancy)
LIA_COLUMNS = [
    ("MAJ", "majority_vote", [], False),
    ("MAJ*", "dl", [], True),
    ("DS", "dawid_skene", [], False),
    ("MMCE", "mmce", [], False),
    ("Snorkel", "snorkel", [], False),
    ("MeTaL", "label_model", [], False),
    ("LIA-E", "lia", [], False),
    ("LIA", "lia", [], True),
    ("LIA-ML", "lia_multi", [], True),
]
MEDICAL = ("medrel_cause", "medrel_treat")
LIA_SETS = {"bluebirds": (2, 5, 10, 20, 39), "rte": (2, 5, 10), **{name: (2, 5, 10) for name in MEDICAL}}
LIA_PAPER = {
    "bluebirds": {
        "MAJ": "63.9 71.1 74.4 76.4 75.9", "MMCE": "66.9 73.9 76.5 78.5 79.6",
        "Snorkel": "63.8 72.4 76.0 76.0 76.0", "MeTaL": "63.0 71.5 83.0 87.0 89.0", "LIA-E": "65.1 73.0 78.1 77.2 78.9",
    },
    "rte": {
        "MAJ": "72.8 84.8 90.0", "MAJ*": "74.5 84.8 89.9", "MMCE": "75.3 88.5 92.7",
        "Snorkel": "65.2 79.1 90.0", "MeTaL": "61.0 72.4 78.0", "LIA-E": "76.7 84.3 91.6", "LIA": "78.0 89.1 93.1",
    },
}


def rows_of(binary: str, file: Path) -> list[tuple[str, str, str]]:
    query = "SELECT instance_id, annotator_id, label FROM a"
    lines = output_of(binary, "sql", "--table", f"a={file}", "--json", "-c", query).splitlines()
    return [tuple(json.loads(line).values()) for line in lines]


def at_most(rows: list[tuple], redundancy: int, seed: int) -> list[tuple]:
    """At most so many annotations of each instance, drawn without replacement."""
    of_instance: dict[str, list[tuple]] = {}
    for row in rows:
        of_instance.setdefault(row[0], []).append(row)
    rng = random.Random(f"{seed} {redundancy}")
    return [row for own in of_instance.values() for row in rng.sample(own, min(redundancy, len(own)))]


def write_csv(path: Path, header: list[str], rows: list[tuple]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def lia_accuracy(binary: str, data: Path, name: str, column: tuple, drawn: dict[str, list[tuple]], seed: int) -> float:
    """The accuracy of one fit to the annotations drawn; LIA-ML reads those of both relations."""
    title, kind, settings, has_features = column
    both = kind == "lia_multi"
    with tempfile.TemporaryDirectory() as folder:
        annotations, run = Path(folder) / "annotations.csv", f"{folder}/run"
        names = MEDICAL if both else (name,)
        rows = [(*row, question) if both else row for question in names for row in drawn[question]]
        header = ["instance_id", "annotator_id", "label", *(["question"] if both else [])]
        write_csv(annotations, header, rows)
        command = [binary, "aggregate", "--annotations", str(annotations), "--model", kind, "--output", run, "-q"]
        for setting in (f"seed={seed}", "engine.threads=1", *settings):
            command += ["--set", setting]
        if has_features:
            # Ids that look like numbers are text in some sets, and numbers in a CSV file: a text operator makes them text.
            ids = "instance_id || '' AS instance_id"
            command += ["--features", str(data / name / "features.parquet")]
            command += ["--set", f"source.sql.features=SELECT {ids}, features FROM features"]
            command += ["--set", f"source.sql.annotations=SELECT {', '.join([ids, *header[1:]])} FROM annotations"]
        output_of(*command)
        truth = str(data / name / "truth.parquet")
        where = f" AND question = '{name}'" if both else ""
        # Of `dl`, the classifier is scored: its posteriors are those of the aggregator.
        labels = "labels" if kind != "dl" else (
            "(SELECT instance_id, class AS label FROM (SELECT *, row_number() OVER (PARTITION BY instance_id "
            "ORDER BY probability DESC, class) AS n FROM predictions) WHERE n = 1)"
        )
        query = (
            "SELECT avg(CASE WHEN CAST(l.label AS VARCHAR) = CAST(t.label AS VARCHAR) THEN 1.0 ELSE 0.0 END) AS accuracy "
            f"FROM {labels} l JOIN t ON CAST(l.instance_id AS VARCHAR) = CAST(t.instance_id AS VARCHAR) WHERE true{where}"
        )
        if title == "MAJ":
            scores = json.loads(output_of(binary, "evaluate", "--run", run, "--truth", truth, "--json"))
            if isinstance(scores, list):
                scores = {score["name"]: score["value"] for score in scores}
            return 100 * scores["accuracy_expected_ties"]
        answer = output_of(binary, "sql", "--run", run, "--table", f"t={truth}", "--json", "-c", query)
        return 100 * json.loads(answer)["accuracy"]


def lia(binary: str, data: Path, draws: int, pool: ThreadPoolExecutor) -> str:
    kinds, crowd = known_kinds(binary), {name: rows_of(binary, data / name / "annotations.parquet") for name in LIA_SETS}
    columns = [column for column in LIA_COLUMNS if column[1] in kinds]
    text = f"""## LIA, table 2: accuracy by redundancy

At most so many annotations of each instance, {draws} draws (the paper has 50); mean and half of its 95 % interval in percent,
then the paper's mean in brackets. The paper's medical figures are of a task with 14 classes, which its program does not have:
they are left out. LIA-E learns embeddings of the instances, without features. Of MAJ* the classifier is scored, of the others the labels
of annotated instances.

| data | at most | {' | '.join(title for title, *_ in columns)} |
|{' --- |' * (2 + len(columns))}
"""
    for name, redundancies in LIA_SETS.items():
        for at, redundancy in enumerate(redundancies):
            cells = []
            drawn = [
                {name: at_most(rows, redundancy, seed) for name, rows in crowd.items()} for seed in range(draws)
            ]
            for column in columns:
                title, kind, _, has_features = column
                is_there = (data / name / "features.parquet").exists() or not has_features
                if not is_there or (kind == "lia_multi" and name not in MEDICAL):
                    cells.append("")
                    continue
                futures = [
                    pool.submit(lia_accuracy, binary, data, name, column, crowds, seed)
                    for seed, crowds in enumerate(drawn)
                ]
                paper = LIA_PAPER.get(name, {}).get(title, "").split()
                try:
                    cells.append(cell([future.result() for future in futures], paper[at] if paper else ""))
                except subprocess.CalledProcessError:
                    cells.append("refused")
            text += f"| {name} | {redundancy} | {' | '.join(cells)} |\n"
    return text


# ---- LabelMe ---------------------------------------------------------------------------------------------------------

TRUSTED = """
SELECT instance_id, class, CASE WHEN split = 'test' THEN 'holdout' ELSE 'train' END AS role FROM (
  SELECT instance_id, label AS class, split, row_number() OVER (PARTITION BY split, label ORDER BY instance_id) AS n FROM gold
) WHERE split = 'test' OR (split = 'valid' AND n <= 10)
"""
WITHOUT = "SELECT instance_id, label AS class, 'holdout' AS role FROM gold WHERE split = 'test'"
# (row, lines of [model], whether it has the 80 trusted instances, TCL's figure, CoNAL's figure)
LABELME = [
    ("DL-MV", 'kind = "dl"', False, "79.35", "79.83"),
    ("DL-DS", 'kind = "dl"\naggregator = { kind = "dawid_skene" }', False, "82.48", ""),
    ("DL-IBCC", 'kind = "dl"\naggregator = { kind = "ibcc" }', False, "81.92", ""),
    ("DL-CRH", 'kind = "dl"\naggregator = { kind = "crh" }', False, "80.12", ""),
    ("DL-GLAD", 'kind = "dl"\naggregator = { kind = "glad" }', False, "", "83.12"),
    ("DL-WC", 'kind = "dl"\naggregator = { kind = "worker_clustering" }', False, "", "82.74"),
    ("AggNet", 'kind = "agg_net"', False, "84.82", "84.75"),
    ("CrowdLayer", 'kind = "crowd_layer"', False, "81.42", "83.27"),
    ("CrowdLayer, over", 'kind = "crowd_layer"\nform = "over"', False, "", "82.34"),
    ("DoctorNet", 'kind = "doctor_net"', False, "", "82.12"),
    ("trace", 'kind = "trace_regularised"', False, "", "82.77"),
    ("Max-MIG", 'kind = "max_mig"', False, "85.60", "85.33"),
    ("MBEM", 'kind = "mbem"', False, "79.63", ""),
    ("MBEM, preset", 'kind = "mbem"\npreset = "paper"', False, "79.63", ""),
    ("CVL", 'kind = "cvl"', True, "86.04", ""),
    ("CoNAL", 'kind = "conal"', False, "", "87.12"),
    ("TCL", 'kind = "tcl"', True, "88.09", ""),
    ("TCL, no calibration", 'kind = "tcl"\ncalibrate = false', True, "", ""),
    ("TCL, no retraining", 'kind = "tcl"\nretrain = "none"', True, "", ""),
]


def labelme_accuracy(binary: str, data: Path, model: str, is_trusted: bool, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pipeline.toml"
        file.write_text(
            f'seed = {seed}\n[source]\nannotations = "{data}/labelme/annotations.parquet"\n'
            f'features = "{data}/labelme/features.parquet"\ngold = "{data}/labelme/truth.parquet"\n'
            f'[source.sql]\ngold = """{TRUSTED if is_trusted else WITHOUT}"""\n'
            f'[engine]\nthreads = 1\n[sink]\nurl = "{folder}/out"\ntables = ["labels", "metrics", "run"]\n[model]\n{model}\n'
        )
        output_of(binary, "run", str(file), "-q")
        query = "SELECT value FROM metrics WHERE split = 'holdout' AND name = 'prediction_accuracy'"
        return 100 * json.loads(output_of(binary, "sql", "--run", f"{folder}/out", "--json", "-c", query))["value"]


def labelme(binary: str, data: Path, draws: int, pool: ThreadPoolExecutor) -> str:
    kinds = known_kinds(binary)
    text = f"""## LabelMe

Accuracy of the classifier on the 1 188 photographs of the test part, in percent: mean of {draws} seeds and half of its 95 %
interval, with our defaults, which are not those of the papers. The kinds marked with 80 have ten trusted photographs of each
class, of the validation part.

| | trusted | ours | TCL | CoNAL |
| --- | --- | --- | --- | --- |
"""
    for title, model, is_trusted, *papers in LABELME:
        if not kinds.issuperset(re.findall(r'kind = "(\w+)"', model)):
            continue
        futures = [pool.submit(labelme_accuracy, binary, data, model, is_trusted, seed) for seed in range(draws)]
        ours = cell([future.result() for future in futures], "")
        text += f"| {title} | {80 if is_trusted else ''} | {ours} | {' | '.join(papers)} |\n"
    return text


EXPERIMENTS = {"lia": (lia, 10), "labelme": (labelme, 5)}


def write_section(name: str, section: str) -> None:
    """Replaces the section of an experiment in the page."""
    text = PAGE.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    start, stop = text.index(begin) + len(begin), text.index(end)
    PAGE.write_text(text[:start] + section + text[stop:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--data", default=os.environ.get("LABELMILL_DATA"), help="folder of the datasets")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--labelmill", default=str(target / "release" / "labelmill"))
    parser.add_argument("--draws", type=int, help="draws or seeds of each figure")
    args = parser.parse_args()
    if args.data is None:
        parser.error("give --data, or set LABELMILL_DATA")
    experiment, draws = EXPERIMENTS[args.name]
    draws = args.draws or draws
    version = output_of(args.labelmill, "--version").strip()
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True, cwd=ROOT).strip()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        section = experiment(args.labelmill, Path(args.data), draws, pool)
    section += f"\n`benches/papers.py {args.name} --draws {draws}`, {version}, commit {commit}, {platform.machine()}, CPU.\n"
    print(section)
    write_section(args.name, section)


if __name__ == "__main__":
    main()
