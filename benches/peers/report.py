"""The result of a comparison: a table to read and a JSON file to keep."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from measure import HERE

PEERS = ("crowd-kit", "pandas", "numpy", "duckdb", "pyarrow")
HEADINGS = ("what", "labelmill", "peer", "ratio", "target", "verdict")


def show(value: float | None, unit: str) -> str:
    match unit:
        case _ if value is None:
            return "-"
        case "seconds":
            return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.2f} ms"
        case "bytes":
            return f"{value / 1e9:.3g} GB"
        case "share":
            return f"{value:.3%}"
        case "times":
            return f"{value:.0f}x" if value >= 100 else f"{value:.3g}x"
    raise ValueError(unit)


@dataclass(frozen=True)
class Target:
    bound: str
    limit: float

    def met_by(self, value: float) -> bool:
        return value >= self.limit if self.bound == ">=" else value <= self.limit


def at_least(limit: float) -> Target:
    return Target(">=", limit)


def at_most(limit: float) -> Target:
    return Target("<=", limit)


@dataclass(frozen=True)
class Row:
    """One line of the table; the target is for the ratio, or for labelmill's value without one."""

    what: str
    unit: str = "seconds"
    labelmill: float | None = None
    peer: float | None = None
    ratio: float | None = None
    target: Target | None = None
    failure: str | None = None

    def judged(self) -> tuple[float | None, str]:
        """The value that the target applies to, and its unit."""
        return (self.labelmill, self.unit) if self.ratio is None else (self.ratio, "times")

    def verdict(self) -> str:
        value, _ = self.judged()
        if self.failure:
            return "FAILED"
        if self.target is None or value is None:
            return "-"
        return "ok" if self.target.met_by(value) else "MISS"

    def cells(self) -> tuple[str, ...]:
        _, unit = self.judged()
        return (
            self.what,
            show(self.labelmill, self.unit),
            show(self.peer, self.unit),
            show(self.ratio, "times"),
            f"{self.target.bound} {show(self.target.limit, unit)}" if self.target else "-",
            self.verdict(),
        )


def table(rows: Iterable[Row]) -> str:
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(aligned(line, widths) for line in lines)


def aligned(line: tuple[str, ...], widths: list[int]) -> str:
    """The line with its first and last cell aligned left and the numbers between aligned right."""
    first, *numbers, last = line
    middle = [number.rjust(width) for number, width in zip(numbers, widths[1:-1], strict=True)]
    return "  ".join([first.ljust(widths[0]), *middle, last])


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def commit() -> str | None:
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False
    )
    return git.stdout.strip() if git.returncode == 0 else None


def machine(peers: Iterable[str] = PEERS) -> dict:
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "commit": commit(),
        "peers": {peer: version(peer) for peer in peers},
    }


def summary(row: Row) -> dict:
    """A row for the JSON file."""
    return asdict(row) | {"verdict": row.verdict()}
