"""Compares `crowdlab` with cleanlab on data sets with features, given the same probabilities.

A logistic regression of scikit-learn predicts each instance from the others, and both programs get
its probabilities. A last crowd of 100 k annotations by 4 000 annotators is drawn, for the time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from cleanlab.multiannotator import get_label_quality_multiannotator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from labelmill import default_binary

DATA_SETS = ["labelme", "music", "medrel_cause", "medrel_treat"]
TOLERANCE = 1e-9


def read(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Annotations, one for each pair of instance and annotator, and the features of their instances."""
    annotations = pd.read_parquet(folder / "annotations.parquet")
    annotations = annotations[["instance_id", "annotator_id", "label"]].astype(str)
    annotations = annotations.drop_duplicates(["instance_id", "annotator_id"])
    features = pd.read_parquet(folder / "features.parquet")
    features["instance_id"] = features["instance_id"].astype(str)
    features = features[features["instance_id"].isin(annotations["instance_id"])]
    annotations = annotations[annotations["instance_id"].isin(features["instance_id"])]
    return annotations, features.set_index("instance_id").sort_index()


def matrix(features: pd.DataFrame) -> np.ndarray:
    if "features" in features:
        return np.stack(features["features"].to_numpy()).astype(float)
    return features.select_dtypes("number").to_numpy(float)


def probabilities(annotations: pd.DataFrame, features: pd.DataFrame) -> pd.DataFrame:
    """P(class) of each instance, by a regression that has learned the majority votes of others."""
    votes = pd.crosstab(annotations["instance_id"], annotations["label"]).loc[features.index]
    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    known = votes.columns[votes.to_numpy().argmax(axis=1)]
    p = cross_val_predict(regression, matrix(features), known, cv=5, method="predict_proba")
    found = pd.DataFrame(0.0, index=features.index, columns=votes.columns)
    found[sorted(set(known))] = p
    return found


def drawn() -> tuple[pd.DataFrame, pd.DataFrame]:
    """20 k instances of five classes with five annotations each, and probabilities around them."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, 20_000)
    instance = np.repeat(np.arange(20_000), 5)
    annotator = (instance * 7 + np.tile(np.arange(5), 20_000) * 811) % 4_000
    skill = rng.uniform(0.4, 0.95, 4_000)
    right = rng.random(len(instance)) < skill[annotator]
    label = np.where(right, truth[instance], rng.integers(0, 5, len(instance)))
    annotations = pd.DataFrame({"instance_id": instance, "annotator_id": annotator, "label": label})
    p = rng.dirichlet(np.ones(5), 20_000) + 0.7 * np.eye(5)[truth]
    classes = [str(k) for k in range(5)]
    index = pd.Index([str(i) for i in range(20_000)], name="instance_id")
    frame = pd.DataFrame(p / p.sum(axis=1, keepdims=True), index=index, columns=classes)
    return annotations.astype(str), frame


def of_labelmill(
    binary: Path, annotations: pd.DataFrame, p: pd.DataFrame, folder: Path
) -> dict[str, pd.Series | float]:
    annotations.to_parquet(folder / "annotations.parquet", index=False)
    table = p.rename_axis("instance_id").reset_index()
    table = table.melt("instance_id", var_name="class", value_name="probability")
    table.to_parquet(folder / "predictions.parquet", index=False)
    output = folder / "output"
    command = [binary, "aggregate", "--annotations", folder / "annotations.parquet"]
    command += ["--model", "crowdlab", "--output", output]
    command += ["--set", f"source.predictions={folder / 'predictions.parquet'}"]
    command += ["--set", "frame.classes=[" + ",".join(f'"{name}"' for name in p.columns) + "]"]
    subprocess.run(command, check=True, capture_output=True)

    def read_table(name: str) -> pd.DataFrame:
        return pd.read_parquet(output / "latest" / name)

    instances, annotators = read_table("instance_parameters"), read_table("annotator_parameters")
    named = lambda rows, name, key: rows[rows["name"] == name].set_index(key)["value"]
    return {
        "quality": named(instances, "quality", "instance_id"),
        "weight": named(annotators, "weight", "annotator_id"),
        "skill": read_table("annotators").set_index("annotator_id")["skill"],
        "label": read_table("labels").set_index("instance_id")["label"],
        "seconds": float(read_table("run")["seconds_fitting"].iloc[0]),
    }


def of_cleanlab(annotations: pd.DataFrame, p: pd.DataFrame) -> dict[str, pd.Series | float]:
    numbers = {name: number for number, name in enumerate(p.columns)}
    wide = annotations.assign(label=annotations["label"].map(numbers))
    wide = wide.pivot(index="instance_id", columns="annotator_id", values="label").loc[p.index]
    np.random.seed(0)
    start = time.perf_counter()
    found = get_label_quality_multiannotator(
        wide, p.to_numpy(), verbose=False, return_weights=True
    )
    seconds = time.perf_counter() - start
    labels = found["label_quality"]
    return {
        "quality": labels["consensus_quality_score"],
        "weight": pd.Series(found["annotator_weight"], wide.columns),
        "skill": found["annotator_stats"]["annotator_quality"].dropna(),
        "label": labels["consensus_label"].map(dict(enumerate(p.columns))),
        "seconds": seconds,
    }


def compare(name: str, binary: Path, annotations: pd.DataFrame, p: pd.DataFrame) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        own = of_labelmill(binary, annotations, p, Path(folder))
    peer = of_cleanlab(annotations, p)
    parts = ["quality", "weight", "skill"]
    gaps = [float((own[part] - peer[part]).loc[peer[part].index].abs().max()) for part in parts]
    same = float((own["label"].loc[peer["label"].index] == peer["label"]).mean())
    # Ties that no rule breaks are random in cleanlab.
    is_equal = same > 0.999 and all(gap < TOLERANCE for gap in gaps)
    print(
        f"| {name} | {len(annotations)} | "
        + " | ".join(f"{gap:.1e}" for gap in gaps)
        + f" | {100 * same:.2f} % | {own['seconds']:.3f} s | {peer['seconds']:.3f} s "
        + f"| {'ok' if is_equal else 'MISS'} |",
        flush=True,
    )
    return is_equal


def main() -> None:
    parser = argparse.ArgumentParser(prog="crowdlab.sh", description=__doc__.splitlines()[0])
    data = os.environ.get("LABELMILL_DATA")
    parser.add_argument("--data", type=Path, default=data and Path(data), help="the data sets")
    parser.add_argument("--labelmill", type=Path, default=default_binary(), help="the binary")
    options = parser.parse_args()
    if options.data is None:
        parser.error("name the folder of the data sets with --data or LABELMILL_DATA")

    print("| data | annotations | quality | weight | skill | same label | labelmill | cleanlab | |")
    print("|---|---|---|---|---|---|---|---|---|")
    equal = []
    for name in DATA_SETS:
        annotations, features = read(options.data / name)
        p = probabilities(annotations, features)
        equal.append(compare(name, options.labelmill, annotations, p))
    equal.append(compare("drawn", options.labelmill, *drawn()))
    sys.exit(0 if all(equal) else 1)


if __name__ == "__main__":
    main()
