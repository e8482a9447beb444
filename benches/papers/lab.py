"""What the experiments share: the binary, the data, fits side by side, and cells of a table."""

import csv
import json
import math
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from pathlib import Path


Measured = tuple[float | None, ...]
"""The figures of one fit; None for what its kind has not."""


class Refused(Exception):
    """The binary ended with an error, whose first line this holds."""


@dataclass(frozen=True)
class Lab:
    binary: str
    data: Path
    pictures: Path
    """Folder of `features.parquet` and `truth.parquet`: MNIST, or pictures such as those of CIFAR-10."""
    draws: int
    quick: bool
    pool: ThreadPoolExecutor
    scratch: Path
    failures: dict[str, list[str]] = field(default_factory=dict)
    """The cells without a figure by the error that says why."""

    def call(self, *words: object) -> str:
        # One fit per core, because small matrix products do not keep several cores busy.
        done = subprocess.run(
            [self.binary, *map(str, words)], capture_output=True, text=True, env={**os.environ, "RAYON_NUM_THREADS": "1"}
        )
        if done.returncode == 0:
            return done.stdout
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        raise Refused(errors[0].removeprefix("error: ") if errors else f"exit status {done.returncode}")

    @cached_property
    def kinds(self) -> dict[str, dict]:
        """The kinds of the binary, with the defaults of their keys."""
        return {kind["kind"]: kind["defaults"] for kind in json.loads(self.call("models", "--json"))}

    def rows(self, query: str, run: Path | None = None, **tables: Path) -> list[dict]:
        words = ["--run", run] if run else []
        words += [word for name, path in tables.items() for word in ("--table", f"{name}={path}")]
        return [json.loads(line) for line in self.call("sql", *words, "--json", "-c", query).splitlines()]

    def copy(self, query: str, path: Path, **tables: Path) -> Path:
        words = [word for name, table in tables.items() for word in ("--table", f"{name}={table}")]
        self.call("sql", "--write", *words, "-c", f"COPY ({query}) TO '{path}'")
        return path

    def folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.scratch))

    def simulate(self, recipe: str, settings: dict[str, object], seed: int, **options: Path) -> Path:
        crowd = self.folder() / "crowd"
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        words += [word for name, path in options.items() for word in (f"--{name}", path)]
        self.call("simulate", "--recipe", recipe, *words, "--seed", seed, "--output", crowd)
        return crowd

    @contextmanager
    def fit(self, source: dict[str, object], model: str, seed: int) -> Iterator[Path]:
        """A run with the relations of `source`, whose dotted keys are those of a pipeline file, and the lines of [model]."""
        folder = self.folder()
        lines = [f"source.{key} = {json.dumps(str(value))}" for key, value in source.items()]
        head = [f"seed = {seed}", "engine.threads = 1", f"sink.url = {json.dumps(str(folder / 'out'))}"]
        (folder / "pipeline.toml").write_text("\n".join([*head, *lines, "[model]", model, ""]))
        try:
            self.call("run", folder / "pipeline.toml", "-q")
            yield folder / "out"
        finally:
            shutil.rmtree(folder)

    def scores(self, run: Path, truth: Path, confusion: Path | None = None) -> dict[str, float]:
        words = ["--confusion", confusion] if confusion else []
        return json.loads(self.call("evaluate", "--run", run, "--truth", truth, *words, "--json"))

    def accuracy(self, run: Path) -> float:
        """The classifier's accuracy on the gold that only scores, in percent."""
        query = "SELECT value FROM metrics WHERE split = 'holdout' AND name = 'prediction_accuracy'"
        return 100 * self.rows(query, run)[0]["value"]

    def cell(self, title: str, measure: Callable[[int], Measured], *papers: str) -> Callable[[], str]:
        """Starts a measure for every draw; the function returned waits, and writes the means, each with the paper's figure."""
        futures = [self.pool.submit(measure, draw) for draw in range(1, self.draws + 1)]

        def wait() -> str:
            try:
                measured = [future.result() for future in futures]
            except Refused as error:
                for future in futures:
                    future.cancel()
                self.failures.setdefault(str(error), []).append(title)
                return "refused"
            columns = zip_longest(zip(*measured), papers, fillvalue="")
            return "; ".join(figure(values, paper) for values, paper in columns if None not in values)

        return wait

    def footnotes(self) -> str:
        """A sentence for every error that left cells without a figure."""
        notes = (f"Refused: {', '.join(dict.fromkeys(cells))}: \"{error}\".\n" for error, cells in self.failures.items())
        text = "\n" + "".join(notes) if self.failures else ""
        self.failures.clear()
        return text


def network(model: str, backbone: str, epochs: int, select: str = "last") -> str:
    """The lines of [model] with the network that all rows of a table share."""
    if any(kind in model for kind in ('"gem"', '"conal_em_net"')):
        return f'{model}\nclassifier = {{ kind = "network", network = {{ backbone = {backbone}, epochs = {epochs} }} }}'
    return f'{model}\nbackbone = {backbone}\ntrain.epochs = {epochs}\ntrain.select = "{select}"'


def figure(values: Iterable[float], paper: str = "") -> str:
    """The mean with half of its 95 % interval, and the paper's figure in brackets."""
    values = list(values)
    text = f"{statistics.mean(values):.1f}"
    if len(values) > 1:
        text += f" ± {1.96 * statistics.stdev(values) / math.sqrt(len(values)):.1f}"
    return f"{text} ({paper})" if paper else text


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rows])


def write_csv(path: Path, header: list[str], rows: Iterable[tuple]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path
