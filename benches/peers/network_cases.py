"""The synthetic crowds with features that networks are trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import median

import numpy as np

SEED = 20_240_501
HIDDEN, AUXILIARY, EMBEDDING = 128, 128, 20
DROPOUT, LEARNING_RATE, LAMBDA = 0.5, 1e-3, 1e-5
"""The network and the optimiser of both sides."""


@dataclass(frozen=True)
class NetworkCase:
    """The size of one crowd, and how it is trained on."""

    name: str
    instances: int
    features: int
    annotators: int
    classes: int
    annotations: float
    """The mean number per instance."""
    batches: tuple[int, ...]
    epochs: int = 8
    peer_steps: int | None = None
    """The steps of an epoch that PyTorch takes; their time is scaled up to the whole epoch."""

    def scaled(self, scale: float) -> NetworkCase:
        """The same crowd with fewer instances and annotators."""
        return replace(
            self,
            instances=max(2 * self.classes, round(self.instances * scale)),
            annotators=max(8, round(self.annotators * scale)),
        )


LABELME = NetworkCase("labelme", 1_000, 512, 59, 8, 2.55, (64, 1024), epochs=40)
SPARSE = NetworkCase("sparse", 20_000, 128, 2_000, 10, 3, (256,), peer_steps=20)
WIDE = replace(SPARSE, name="wide", annotators=50_000, peer_steps=2)
CASES = (LABELME, SPARSE, WIDE)


@dataclass(frozen=True)
class Images:
    """Images of ten classes, each labelled by one annotator, and the network that is trained on them."""

    kind: str
    shape: tuple[int, int, int]
    instances: int
    batch: int = 128

    def case(self, scale: float) -> NetworkCase:
        rows = max(2 * self.batch, round(self.instances * scale))
        return NetworkCase(self.kind, rows, prod(self.shape), 20, 10, 1, (self.batch,), epochs=4)


IMAGES = (
    Images("lenet", (1, 28, 28), 8_192),
    Images("vgg16", (3, 32, 32), 512),
    Images("resnet20", (3, 32, 32), 1_024),
)


@dataclass(frozen=True)
class Epochs:
    """The measurements of one side: the seconds and the loss of each epoch."""

    seconds: list[float]
    losses: list[float]

    def steady_seconds(self) -> float:
        """The median time without the first epoch, which also warms the caches."""
        return median(self.seconds[1:])


class FeatureCrowd:
    """Features around the centre of a class, and annotators of accuracy 0.5 to 0.95."""

    def __init__(self, case: NetworkCase) -> None:
        rng = np.random.default_rng(SEED)
        truth = rng.integers(case.classes, size=case.instances)
        centres = rng.normal(size=(case.classes, case.features))
        noise = rng.normal(size=(case.instances, case.features))
        self.features = ((0.3 * centres[truth] + noise) / 1.05).astype(np.float32)
        # Annotators take turns, so that none gets an instance twice and all get some.
        ends = (case.annotations * np.arange(case.instances + 1)).astype(np.int64)
        self.instance = np.repeat(np.arange(case.instances), np.diff(ends))
        turns = rng.permutation(case.annotators)
        self.annotator = turns[np.arange(self.instance.size) % case.annotators]
        accuracy = rng.uniform(0.5, 0.95, size=case.annotators)[self.annotator]
        wrong = rng.random(self.instance.size) >= accuracy
        shift = rng.integers(1, case.classes, size=self.instance.size)
        self.label = (truth[self.instance] + wrong * shift) % case.classes

    def write(self, annotations: Path, features: Path) -> None:
        # Imported here because `gpu.py` draws crowds where only PyTorch and numpy are installed.
        import pyarrow as pa
        import pyarrow.parquet as pq

        def ids(prefix: str, codes: np.ndarray) -> pa.Array:
            return pa.array([f"{prefix}{code}" for code in codes])

        columns = {
            "instance_id": ids("i", self.instance),
            "annotator_id": ids("a", self.annotator),
            "label": ids("c", self.label),
        }
        rows, width = self.features.shape
        lists = pa.FixedSizeListArray.from_arrays(pa.array(self.features.ravel()), width)
        pq.write_table(pa.table(columns), annotations)
        pq.write_table(
            pa.table({"instance_id": ids("i", np.arange(rows)), "features": lists}), features
        )
