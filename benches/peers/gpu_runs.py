"""Jobs of labelmill on generated crowds with features, within a limit of time."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

FEATURES = """
COPY (SELECT 'i' || n AS instance_id, arrow_cast(make_array({features}), 'List(Float32)') AS features
FROM (SELECT value AS n, value % {classes} + 1 AS class FROM range(0, {instances}))) TO '{path}'
"""
FEATURE = "sin({by_class:.4f} * class) + 2 * sin(78.233 * n + {by_instance:.3f})"
ANNOTATIONS = """
COPY (SELECT 'i' || i.value AS instance_id, 'a' || ((i.value * {each} + j.value) % {annotators}) AS annotator_id,
    'c' || CASE WHEN (i.value * 7 + j.value * 3) % 5 = 0 THEN (i.value + 1) % {classes}
        ELSE i.value % {classes} END AS label
FROM range(0, {instances}) AS i CROSS JOIN range(0, {each}) AS j) TO '{path}'
"""
"""Features near the centre of their class, and labels of which one in five is wrong; the same on every machine."""
OF_MNIST = {
    "annotations": """
COPY (SELECT instance_id, 'a' || ((i * {each} + j.value) % {annotators}) AS annotator_id,
    'c' || CASE WHEN (i * 7 + j.value * 3) % 5 = 0 THEN (class + 1) % 10 ELSE class END AS label
FROM (SELECT instance_id, CAST(substr(instance_id, 6) AS BIGINT) AS i, CAST(label AS BIGINT) AS class FROM truth
    WHERE split = 'train') AS images CROSS JOIN range(0, {each}) AS j WHERE i < {instances}) TO '{path}'
""",
    "features": """
COPY (SELECT instance_id, arrow_cast(pixels, 'FixedSizeList(784, Float32)') AS features FROM images
WHERE split = 'train' AND CAST(substr(instance_id, 6) AS BIGINT) < {instances}) TO '{path}'
""",
}
"""The same labels for MNIST's first training images, whose names are their places."""
class Failed(Exception):
    """A command ended with an error."""


class LeftOut(Exception):
    """There is no time left for a case, or its own time is over."""


@dataclass
class Clock:
    """The time of the whole report, and of each case."""

    seconds: float
    case_seconds: float
    start: float = field(default_factory=time.monotonic)
    left_out: list[str] = field(default_factory=list)

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @contextmanager
    def limit(self, what: str) -> Iterator[None]:
        """Raises `LeftOut` where the time of a case is over; a child process that it waits for is then killed."""
        remaining = self.seconds - self.elapsed()
        seconds = min(self.case_seconds, remaining)
        reason = f"stopped after {seconds:.0f} s" if remaining > 0 else "no time left"

        def stop(*_: object) -> None:
            raise LeftOut(reason)

        before = signal.signal(signal.SIGALRM, stop)
        try:
            if remaining <= 0:
                raise LeftOut(reason)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        except LeftOut:
            self.left_out.append(f"{what} ({reason})")
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class CrowdSpec:
    """The sizes of a crowd with features."""

    instances: int
    shape: tuple[int, ...]
    annotators: int
    classes: int
    each: int = 3
    mnist: Path | None = None
    """The folder of MNIST, whose images are the features; they are generated without."""

    def description(self) -> str:
        """The data, for a table."""
        size = " x ".join(map(str, self.shape))
        return f"{self.instances} images of {'MNIST' if self.mnist else size}"


@dataclass(frozen=True)
class Labelmill:
    binary: Path
    folder: Path

    def call(self, *words: object) -> str:
        command = [str(word) for word in (self.binary, *words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr.strip()}")
        return done.stdout

    def kinds(self) -> list[str]:
        """The kinds whose classifier is always a network."""
        models = json.loads(self.call("models", "--json"))
        return [m["kind"] for m in models if "backbone" in m["parameters"]["properties"]]

    def write(self, crowd: CrowdSpec) -> tuple[Path, Path]:
        """Writes the annotations and features of a crowd, unless an earlier run did."""
        name = f"{crowd.instances}-{math.prod(crowd.shape)}-{crowd.annotators}-{crowd.classes}"
        name += "-mnist" if crowd.mnist else ""
        paths = self.folder / f"annotations-{name}.parquet", self.folder / f"features-{name}.parquet"
        if not all(path.exists() for path in paths):
            queries, tables = [ANNOTATIONS, FEATURES], []
            if crowd.mnist:
                queries = [OF_MNIST["annotations"], OF_MNIST["features"]]
                sources = {"truth": "truth.parquet", "images": "features.parquet"}
                for table, file in sources.items():
                    tables += ["--table", f"{table}={crowd.mnist / file}"]
            numbers = range(math.prod(crowd.shape))
            features = (FEATURE.format(by_class=12.9898 * (j + 1), by_instance=37.719 * j) for j in numbers)
            values = vars(crowd) | {"features": ", ".join(features)}
            # A file, because the query for images is longer than an argument may be.
            file = self.folder / "query.sql"
            for query, path in zip(queries, paths, strict=True):
                file.write_text(query.format(**values, path=path))
                self.call("sql", *tables, "--write", file)
        return paths

    def run(self, crowd: CrowdSpec, device: str, settings: str, network: str = "model") -> Path:
        """Runs a job, whose network has its settings in the table `network`; returns the folder of its tables."""
        annotations, features = self.write(crowd)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        pipeline, sink = folder / "pipeline.toml", folder / "run"
        paths = {"source.annotations": annotations, "source.features": features, "sink.url": sink}
        lines = [f"{key} = {json.dumps(str(path))}" for key, path in paths.items()]
        pipeline.write_text("\n".join([*lines, f'{network}.device = "{device}"', settings]))
        self.call("run", pipeline, "--quiet")
        return sink

    def query(self, run: Path, query: str) -> list[dict]:
        return [json.loads(line) for line in self.call("sql", "--run", run, "--json", "-c", query).splitlines()]

    def seconds(self, crowd: CrowdSpec, device: str, settings: str) -> float:
        """The median time of the epochs after the first."""
        run = self.run(crowd, device, settings)
        return median(row["seconds"] for row in self.query(run, "SELECT step, seconds FROM trace WHERE step > 1"))
