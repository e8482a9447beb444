"""Runs labelmill jobs and reads the tables that they write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from measure import HERE, Child, ChildFailed, parquet, run, run_query

FIRST_STEADY_STEP = 2
"""The first step that counts for the median; the one before also warms the caches."""


def default_binary() -> Path:
    target = os.environ.get("CARGO_TARGET_DIR") or HERE.parent.parent / "target"
    return Path(target) / "release" / "labelmill"


@dataclass(frozen=True)
class Job:
    """A finished job."""

    child: Child
    output: Path

    def table(self, name: str) -> str:
        """An output table, as a table expression of DuckDB."""
        return parquet(self.output / "latest" / name / "*.parquet")

    def iteration_seconds(self) -> float:
        """The median wall time of one iteration."""
        query = (
            f"SELECT median(seconds)::DOUBLE FROM {self.table('trace')} "
            f"WHERE step >= {FIRST_STEADY_STEP}"
        )
        [[seconds]] = run_query(query).answer()["rows"]
        return seconds

    def seconds_to(self, objective: float) -> float:
        """The wall time of the iterations until the objective is at least this one."""
        query = (
            f"WITH steps AS (SELECT step, objective, sum(seconds) OVER (ORDER BY step) AS total "
            f"FROM {self.table('trace')}) "
            f"SELECT min(total)::DOUBLE FROM steps WHERE objective >= {objective!r}"
        )
        [[seconds]] = run_query(query).answer()["rows"]
        if seconds is None:
            raise ChildFailed(f"labelmill never reached the objective {objective}")
        return seconds


@dataclass(frozen=True)
class LabelmillCommand:
    binary: Path
    scratch: Path

    def version(self) -> str:
        return run(self.binary, "--version").output.strip()

    @contextmanager
    def aggregate(self, annotations: Path, model: str, settings: dict[str, str]) -> Iterator[Job]:
        """Runs a job into a new folder, which exists as long as the context."""
        choices = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            output = Path(folder) / "output"
            child = run(
                self.binary, "aggregate", "--annotations", annotations, "--model", model,
                *choices, "--output", output,
            )  # fmt: skip
            yield Job(child, output)
