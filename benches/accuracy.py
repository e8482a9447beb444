#!/usr/bin/env python3
"""Test accuracy of every model with features on LabelMe and Music: mean and deviation over seeds, as Markdown.

    cargo build --release && benches/accuracy.py --data <folder of the datasets> > benches/accuracy.md
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
# (name, lines of [model], with a classifier if it is no network, whether gold gives the classes of the training part)
MODELS = [
    ("classifier on the truth (ceiling)", 'kind = "dl"', True),
    ("dl, majority vote", 'kind = "dl"', False),
    ("dl, Dawid-Skene", 'kind = "dl"\naggregator = { kind = "dawid_skene" }', False),
    ("soft_bootstrap", 'kind = "soft_bootstrap"', False),
    ("single_confusion", 'kind = "single_confusion"', False),
    ("doctor_net", 'kind = "doctor_net"', False),
    ("weighted_doctor_net", 'kind = "weighted_doctor_net"', False),
    ("crowd_layer", 'kind = "crowd_layer"', False),
    ("trace_regularised", 'kind = "trace_regularised"', False),
    ("conal, logit_mix", 'kind = "conal"', False),
    ("conal, prob_mix", 'kind = "conal"\nmixture = "prob_mix"', False),
    ("conal, row_stochastic", 'kind = "conal"\nmixture = "row_stochastic"', False),
    ("max_mig", 'kind = "max_mig"', False),
    ("agg_net", 'kind = "agg_net"', False),
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


def accuracy(binary: str, pipeline: str, data: str, seed: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pipeline.toml"
        file.write_text(pipeline)
        command = [binary, "run", str(file), "--var", f"data={data}", "-q"]
        command += ["--set", f"seed={seed}", "--set", f"sink.url={folder}/out", "--set", "engine.threads=1"]
        subprocess.run(command, check=True, env={**os.environ, "RAYON_NUM_THREADS": "1"})
        query = "SELECT value FROM metrics WHERE name = 'prediction_accuracy' AND split = 'holdout'"
        answer = [binary, "sql", "--run", f"{folder}/out", "--json", "-c", query]
        return 100 * json.loads(subprocess.check_output(answer))["value"]


def cell(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=os.environ.get("LABELMILL_DATA"), help="folder of the datasets")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--labelmill", default=str(target / "release" / "labelmill"))
    parser.add_argument("--seeds", type=int, default=5)
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

    told = f'"SELECT instance_id, label AS class, {TRUTH} AS role FROM gold"'
    rows = [
        (name, "last", *(pipeline(data, model, told if is_told else None) for data in ("labelme", "music")))
        for name, model, is_told in MODELS
    ]
    rows.append(("tcl, 80 trusted instances", "last", pipeline("labelme", 'kind = "tcl"', EIGHTY_TRUSTED), None))
    rows.append(("conal, `pipelines/labelme.toml`", "valid", own["labelme"], None))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cells = [
            [
                text and [pool.submit(accuracy, args.labelmill, text, args.data, seed) for seed in range(args.seeds)]
                for text in texts
            ]
            for _, _, *texts in rows
        ]
        version = subprocess.check_output([args.labelmill, "--version"], text=True).strip()
        commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True, cwd=ROOT).strip()
        print("# Test accuracy of the models with features\n")
        print(f"`benches/accuracy.py --seeds {args.seeds}`, {version}, commit {commit}, {platform.machine()}, CPU.")
        print("Mean and standard deviation over the seeds, in percent. The selection names the epoch that is kept: `last`")
        print("needs no gold, `valid` looks at LabelMe's validation part. LabelMe: the")
        print("defaults of every model. Music: the training of `pipelines/music.toml`, chosen on a fifth of the training clips")
        print("(an earlier search had shown test figures, so its rows are not quite blind).\n")
        print("| model | selection | LabelMe | Music |\n| --- | --- | --- | --- |")
        for (name, selection, *_), futures in zip(rows, cells):
            values = [future and [f.result() for f in future] for future in futures]
            shown = [cell(v) if v else "" for v in values]
            print(f"| {name} | {selection} | {' | '.join(shown)} |", flush=True)


main()
