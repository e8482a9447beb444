"""Fits crowd-kit's GLAD and prints its seconds and the objective that it reached as JSON.

The objective is labelmill's: the log-likelihood of the annotations given the abilities and eases,
with equally likely classes summed out, minus half the sum of the squared distances of both from 1.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
from crowdkit.aggregation import GLAD
from crowdkit_em import COLUMNS
from scipy.special import log_expit, logsumexp


def objective(annotations: pd.DataFrame, model: GLAD) -> float:
    labels, names = pd.factorize(annotations["label"])
    tasks, index = pd.factorize(annotations["task"])
    ease = model.betas_.loc[index].to_numpy()
    ability = model.alphas_.loc[annotations["worker"]].to_numpy()
    strength = ability * np.exp(ease[tasks])
    wrong = log_expit(-strength) - np.log(len(names) - 1)
    logs = np.zeros((len(index), len(names)))
    np.add.at(logs, tasks, wrong[:, None])
    np.add.at(logs, (tasks, labels), log_expit(strength) - wrong)
    likelihood = logsumexp(logs, axis=1).sum() - len(index) * np.log(len(names))
    squares = np.square(model.alphas_ - 1).sum() + np.square(ease - 1).sum()
    return float(likelihood - squares / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("annotations", type=Path)
    parser.add_argument("iterations", type=int)
    options = parser.parse_args()

    annotations = pd.read_parquet(options.annotations).rename(columns=COLUMNS)
    # Without a tolerance, so that the fit makes all its iterations.
    model = GLAD(n_iter=options.iterations, tol=0)
    start = time.perf_counter()
    model.fit(annotations)
    seconds = time.perf_counter() - start
    print(json.dumps({"fit_seconds": seconds, "objective": objective(annotations, model)}))


if __name__ == "__main__":
    main()
