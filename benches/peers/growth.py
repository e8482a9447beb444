"""One Dawid-Skene iteration as a crowd grows: the table of `cargo bench`, and the verdict of `cliffs.py` on it."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from measure import HERE, run
from report import Row, at_most

ROOT = HERE.parent.parent
sys.path.append(str(ROOT / "benches"))

import cliffs  # noqa: E402  (it is in the folder above)

SIZES = (1e6, 1e7)
"""The numbers of annotations."""


@dataclass(frozen=True)
class Growth:
    """The table as Markdown, and the cells that cost too much."""

    table: list[str]
    verdict: list[str]
    rows: list[Row]

    def text(self) -> str:
        return "\n".join(["", *self.table, "", *self.verdict])


def measure_growth(what: str, scale: float) -> Growth:
    """Runs the benchmark of the kernels, which cargo builds if needed."""
    sizes = ",".join(f"{size * scale:g}".replace("e+0", "e") for size in SIZES)
    bench = ("cargo", "bench", "--manifest-path", ROOT / "Cargo.toml", "--features", "testing")
    child = run("env", f"LABELMILL_GROWTH={sizes}", *bench, "--bench", "kernels", "--quiet")
    table = [line for line in child.output.splitlines() if line.startswith("|")]
    cells = cliffs.cells(table)
    largest = (
        (f"{what}, neighbours, max", cliffs.neighbours(cells), cliffs.MAX_NEIGHBOUR),
        (f"{what}, weights / none, max", cliffs.weighted(cells), cliffs.MAX_WEIGHTS),
    )
    rows = [
        Row(name, ratio=ratios[0][0], target=at_most(limit)) for name, ratios, limit in largest if ratios
    ]
    return Growth(table, cliffs.verdict(cells), rows)
