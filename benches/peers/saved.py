"""Loads saved models into PyTorch and compares its probabilities with those of `labelmill predict`.

It runs the Python code of docs/networks-and-saved-models.md, unchanged, to load a model; only `resnet20` needs another module than
the sequence of that code, and doctor nets the mean of their heads.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from labelmill import default_binary
from measure import HERE, run
from resnet20 import ResNet20

SEED = 20_240_501
ANNOTATORS, CLASSES = 7, 3
TOLERANCE = 1e-5

PIPELINE = """
[source]
annotations = {annotations}
features = {features}

[model]
device = "cpu"
{model}

[model.train]
epochs = {epochs}

[sink]
url = {sink}
"""


Load = Callable[[str, dict], torch.Tensor]
"""Computes probabilities from the page's lines and the names that they read, `folder` and `features`."""


def of_sequence(lines: str, names: dict) -> torch.Tensor:
    exec(lines, names)  # noqa: S102
    return names["p"]


def of_resnet20(lines: str, names: dict) -> torch.Tensor:
    """The lines that make a sequence give way to a module of ours."""
    kept = [line for line in lines.split("\n") if not line.startswith(("modules = ", "net = "))]
    net = ResNet20(names["features"].shape[1], CLASSES).eval()
    return of_sequence("\n".join(kept), names | {"net": net})


def of_doctor_net(lines: str, names: dict, weights_of: Callable[[dict], torch.Tensor]) -> torch.Tensor:
    """The weighted mean of the heads, whose inputs are the outputs of the page's network."""
    of_sequence(lines, names)
    numbers, hidden = names["numbers"], names["net"](names["x"])
    labels = names["model"]["sizes"]["labels"]
    heads = numbers["crowd.00.heads"].unflatten(1, (-1, labels))  # [annotator, hidden + 1, label], the bias last
    p = (torch.einsum("bh,ahl->abl", hidden, heads[:, :-1]) + heads[:, -1:]).softmax(dim=2)
    mean = torch.einsum("a,abl->bl", weights_of(numbers), p)[:, :CLASSES]
    return mean / mean.sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class Case:
    """A network, the size of its training data, and how its probabilities are computed in PyTorch."""

    model: str
    shape: tuple[int, ...] = (12,)
    instances: int = 200
    epochs: int = 3
    load: Load = of_sequence


def backbone(kind: str, *more: str) -> str:
    return "\n".join(['kind = "crowd_layer"', "[model.backbone]", f"kind = \"{kind}\"", *more])


def image(kind: str, shape: tuple[int, int, int], **more: object) -> Case:
    return Case(backbone(kind, f"input = {list(shape)}"), shape, **more)


CASES = {
    "linear": Case(backbone("linear")),
    "mlp": Case(backbone("mlp", "hidden = [16, 9]")),
    **{
        f"mlp, {name}": Case(backbone("mlp", "hidden = [16]", f"activation = \"{name}\""))
        for name in ("gelu", "silu", "tanh", "selu")
    },
    "mlp, no batch norm": Case(backbone("mlp", "batch_norm = false", 'scaling = "max_abs"')),
    "mlp of conal": Case('kind = "conal"'),
    **{
        f"mlp, {method}": Case(
            "\n".join([backbone("mlp", "hidden = [16]"), "[calibration]", f"method = \"{method}\"", 'fit_on = "annotations"'])
        )
        for method in ("temperature", "bias_corrected_temperature", "isotonic")
    },
    "lenet": image("lenet", (1, 28, 28)),
    "lenet, two channels": image("lenet", (2, 12, 14)),
    "vgg16": image("vgg16", (3, 32, 32), instances=40, epochs=1),
    "resnet20": image("resnet20", (3, 32, 32), instances=40, epochs=1, load=of_resnet20),
    "doctor_net": Case(
        'kind = "doctor_net"\nweight_by_annotations = true',
        load=partial(of_doctor_net, weights_of=lambda numbers: numbers["crowd.01.head_weights"][:, 0]),
    ),
    "weighted_doctor_net": Case(
        'kind = "weighted_doctor_net"',
        load=partial(of_doctor_net, weights_of=lambda numbers: numbers["crowd.01.weights"].softmax(dim=0)),
    ),
}


def write_crowd(case: Case, annotations: Path, features: Path) -> torch.Tensor:
    """Draws and writes features and three labels per instance; returns the features."""
    rng = np.random.default_rng(SEED)
    truth = rng.integers(CLASSES, size=case.instances)
    centres = rng.normal(size=(CLASSES, prod(case.shape)))
    noise = rng.normal(size=(case.instances, prod(case.shape)))
    values = (3 + 5 * (centres[truth] + noise)).astype(np.float32)
    instance = np.repeat(np.arange(case.instances), 3)
    annotator = (instance + np.tile(np.arange(3), case.instances)) % ANNOTATORS
    is_wrong = rng.random(instance.size) < 0.2
    label = (truth[instance] + is_wrong) % CLASSES
    columns = {"instance_id": instance, "annotator_id": annotator, "label": label}
    pq.write_table(pa.table(columns), annotations)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), prod(case.shape))
    ids = np.arange(case.instances)
    pq.write_table(pa.table({"instance_id": ids, "features": lists}), features)
    return torch.from_numpy(values).reshape(case.instances, *case.shape)


def page_lines() -> str:
    """The Python code of the page on saved models."""
    text = (HERE.parent.parent / "docs" / "networks-and-saved-models.md").read_text()
    return "\n".join(block.split("\n```", 1)[0] for block in text.split("```python\n")[1:])


def difference(binary: Path, case: Case, lines: str) -> float:
    """The largest difference between the probabilities of PyTorch and labelmill."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        annotations, features = folder / "annotations.parquet", folder / "features.parquet"
        pipeline, sink, output = folder / "pipeline.toml", folder / "run", folder / "predicted"
        values = write_crowd(case, annotations, features)
        paths = {"annotations": annotations, "features": features, "sink": sink}
        paths = {key: json.dumps(str(path)) for key, path in paths.items()}
        pipeline.write_text(PIPELINE.format(model=case.model, epochs=case.epochs, **paths))
        run(binary, "run", pipeline, "--quiet")
        run(binary, "predict", "--model", sink, "--features", features, "--output", output)
        names = {"folder": sink / "latest" / "model", "features": values}
        with torch.no_grad():
            probabilities = case.load(lines, names)
        table = pq.read_table(output / "latest" / "predictions")
        rows = zip(*(table[c].to_pylist() for c in ("instance_id", "class", "probability")))
        model = json.loads((names["folder"] / "model.json").read_text())
        column = {name: k for k, name in enumerate(model["classes"]["values"])}
        predicted = np.full((case.instances, CLASSES), np.nan)
        for instance, label, probability in rows:
            predicted[instance, column[str(label)]] = probability
        return float(np.abs(predicted - probabilities.numpy()).max())


def main() -> int:
    parser = argparse.ArgumentParser(prog="saved.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--labelmill", type=Path, default=default_binary(), help="the binary")
    options = parser.parse_args()
    if not options.labelmill.is_file():
        parser.error(f"no labelmill at {options.labelmill}: build a release or name one")
    torch.manual_seed(SEED)
    lines, differences = page_lines(), []
    for what, case in CASES.items():
        largest = difference(options.labelmill.resolve(), case, lines)
        differences.append(largest)
        print(f"{what:32} {largest:.1e}", flush=True)
    print(f"PyTorch {torch.__version__}: {TOLERANCE:.0e} at most is wanted")
    return 0 if all(largest <= TOLERANCE for largest in differences) else 1


if __name__ == "__main__":
    sys.exit(main())
