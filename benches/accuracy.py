#!/usr/bin/env python3
"""Test accuracy of every model with features on LabelMe and Music, and the effect of calibration, as Markdown.

    cargo build --release
    benches/accuracy.py --data <folder of the datasets> > benches/accuracy.md
    benches/accuracy.py --data <folder of the datasets> --only calibration      # the table of docs/calibration.md

Each figure is a mean over seeds.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRUTH = "CASE split WHEN 'test' THEN 'holdout' WHEN 'valid' THEN 'valid' ELSE 'train' END"
# (name, lines of [model], with a classifier if it is not a network, whether gold gives the classes of the training part)
MODELS = [
    ("classifier on the truth (ceiling)", 'kind = "dl"', True),
    ("dl, majority vote", 'kind = "dl"', False),
    ("dl, Dawid-Skene", 'kind = "dl"\naggregator = { kind = "dawid_skene" }', False),
    ("soft_bootstrap", 'kind = "soft_bootstrap"', False),
    ("single_confusion", 'kind = "single_confusion"', False),
    ("doctor_net", 'kind = "doctor_net"', False),
    ("weighted_doctor_net", 'kind = "weighted_doctor_net"', False),
    ("crowd_layer", 'kind = "crowd_layer"', False),
    ("crowd_layer, over", 'kind = "crowd_layer"\nform = "over"', False),
    ("trace_regularised", 'kind = "trace_regularised"', False),
    ("conal, logit_mix", 'kind = "conal"', False),
    ("conal, prob_mix", 'kind = "conal"\nmixture = "prob_mix"', False),
    ("conal, row_stochastic", 'kind = "conal"\nmixture = "row_stochastic"', False),
    ("max_mig", 'kind = "max_mig"', False),
    ("agg_net", 'kind = "agg_net"', False),
    ("mbem", 'kind = "mbem"', False),
    ("mbem, settings of Li et al.", 'kind = "mbem"\npreset = "paper"', False),
    ("gem, logistic regression", 'kind = "gem"\nclassifier = { kind = "logistic_regression" }', False),
]
# Gold for ten validation images of each class, which have no annotations: as in the paper of TCL.
EIGHTY_TRUSTED = '''"""
SELECT instance_id, label AS class, CASE split WHEN 'valid' THEN 'train' ELSE 'holdout' END AS role
FROM (SELECT *, row_number() OVER (PARTITION BY split, label ORDER BY instance_id) AS n FROM gold)
WHERE split = 'test' OR (split = 'valid' AND n <= 10)
"""'''
# The settings of pipelines/music.toml in addition to the model.
MUSIC = """
backbone = { dropout = 0.3, batch_norm = false }
train = { epochs = 100, optimiser = { annotator_learning_rate = 0.03 } }
"""


# Of the validation part, one half chooses the epoch and the other half calibrates.
HALVES = (
    "SELECT instance_id, label AS class, CASE WHEN split = 'test' THEN 'holdout' "
    "WHEN CAST(substr(instance_id, 6) AS INT) % 2 = 0 THEN 'calibrate' ELSE 'valid' END AS role "
    "FROM gold WHERE split <> 'train'"
)
# (name, settings of the gold)
GOLD = [
    ("halves", ("calibration.fit_on=gold", f"source.sql.gold={HALVES}")),
    ('`fit_on = "valid"`', ("calibration.fit_on=valid",)),
]
METHODS = [
    ("temperature", "temperature"),
    ("temperature and biases", "bias_corrected_temperature"),
    ("isotonic", "isotonic"),
]


def scores(binary: str, pipeline: str, data: str, seed: int, settings: tuple[str, ...] = ()) -> dict[str, float]:
    """The measures of the test part."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pipeline.toml"
        file.write_text(pipeline)
        command = [binary, "run", str(file), "--var", f"data={data}", "-q"]
        for setting in (f"seed={seed}", f"sink.url={folder}/out", "engine.threads=1", *settings):
            command += ["--set", setting]
        subprocess.run(command, check=True, env={**os.environ, "RAYON_NUM_THREADS": "1"})
        query = "SELECT name, value FROM metrics WHERE split = 'holdout'"
        answer = subprocess.check_output([binary, "sql", "--run", f"{folder}/out", "--json", "-c", query])
        return {row["name"]: row["value"] for row in map(json.loads, answer.splitlines())}


def accuracy(binary: str, pipeline: str, data: str, seed: int) -> float:
    return 100 * scores(binary, pipeline, data, seed)["prediction_accuracy"]


def print_calibration(pool: ThreadPoolExecutor, binary: str, pipeline: str, data: str, seeds: int) -> None:
    """The scores of a pipeline before and after calibration, with each way to use its gold and each method."""
    futures = {
        (gold, name): [
            pool.submit(scores, binary, pipeline, data, seed, (*settings, f"calibration.method={method}"))
            for seed in range(seeds)
        ]
        for gold, settings in GOLD
        for name, method in METHODS
    }
    print("| gold | method | accuracy, % | log-loss | ECE |\n| --- | --- | --- | --- | --- |")
    for gold, _ in GOLD:
        # The scores before calibration are those of any method.
        rows = [("uncalibrated", METHODS[0][0], "uncalibrated_"), *((name, name, "") for name, _ in METHODS)]
        for shown, name, before in rows:
            found = [future.result() for future in futures[gold, name]]
            values = [
                [scale * scores[f"prediction_{before}{measure}"] for scores in found]
                for measure, scale in (("accuracy", 100), ("log_loss", 1), ("ece", 1))
            ]
            cells = [cell(of_seeds, digits) for of_seeds, digits in zip(values, (2, 3, 3))]
            print(f"| {gold} | {shown} | {' | '.join(cells)} |", flush=True)


def cell(values: list[float], digits: int = 2) -> str:
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def print_accuracy(
    pool: ThreadPoolExecutor, binary: str, rows: list[tuple[str | None, ...]], data: str, seeds: int
) -> None:
    """A row is a name, a selection, and a pipeline for each dataset, if there is one."""
    cells = [
        [text and [pool.submit(accuracy, binary, text, data, seed) for seed in range(seeds)] for text in texts]
        for _, _, *texts in rows
    ]
    print("Mean and standard deviation over the seeds, in percent. The selection names the epoch that is kept: `last`")
    print("needs no gold, `valid` looks at LabelMe's validation part, which also calibrates (the second table has the")
    print("accuracy before that). LabelMe: the defaults of every model. Music: the training of `pipelines/music.toml`, chosen on a fifth of the training clips")
    print("(an earlier search had shown accuracies on the test clips, which may have influenced the choice).\n")
    print("| model | selection | LabelMe | Music |\n| --- | --- | --- | --- |")
    for (name, selection, *_), futures in zip(rows, cells):
        values = [future and [f.result() for f in future] for future in futures]
        shown = [cell(v) if v else "" for v in values]
        print(f"| {name} | {selection} | {' | '.join(shown)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("LABELMILL_DATA"), help="folder of the datasets")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--labelmill", default=str(target / "release" / "labelmill"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=("accuracy", "calibration"), help="one of the two tables")
    args = parser.parse_args()
    own = {name: (ROOT / "pipelines" / f"{name}.toml").read_text() for name in ("labelme", "music")}

    def pipeline(data: str, model: str, gold: str | None) -> str:
        source = own[data].split("[model]")[0].rsplit("\n#", 1)[0]
        if gold:
            before, rest = source.split("gold = ", 2)[0:2], source.split("gold = ", 2)[2]
            end = rest.index('"""', 3) + 3 if rest.startswith('"""') else rest.index("\n")
            source = "gold = ".join([*before, gold + rest[end:]])
        training = MUSIC if data == "music" and "classifier" not in model else ""
        return f"{source}\n[model]\n{model}\n{training}"

    trusted_source = f'"SELECT instance_id, label AS class, {TRUTH} AS role FROM gold"'
    rows = [
        (name, "last", *(pipeline(data, model, gold) for data in ("labelme", "music")))
        for name, model, is_trusted in MODELS
        for gold in [trusted_source if is_trusted else None]
    ]
    rows.append(("tcl, 80 trusted instances", "last", pipeline("labelme", 'kind = "tcl"', EIGHTY_TRUSTED), None))
    rows.append(("conal, `pipelines/labelme.toml`, calibrated", "valid", own["labelme"], None))
    version = subprocess.check_output([args.labelmill, "--version"], text=True).strip()
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True, cwd=ROOT).strip()
    options = f"--seeds {args.seeds}" + (f" --only {args.only}" if args.only else "")
    print("# Test accuracy of the models with features\n")
    print(f"`benches/accuracy.py {options}`, {version}, commit {commit}, {platform.machine()}, CPU.")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if args.only != "calibration":
            print_accuracy(pool, args.labelmill, rows, args.data, args.seeds)
        if args.only != "accuracy":
            print("\n## Calibration\n")
            print("`pipelines/labelme.toml` on LabelMe's test part, with the 500 instances of the validation part as gold: mean and")
            print("standard deviation over the seeds. Either one half chooses the epoch and the other half calibrates, or all of it does both.\n")
            print_calibration(pool, args.labelmill, own["labelme"], args.data, args.seeds)


if __name__ == "__main__":
    main()
