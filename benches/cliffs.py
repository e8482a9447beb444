#!/usr/bin/env python3
"""Names the cells of tables of growth that cost more than three times a neighbour, or more than 1.5 times no weights.

Reads the tables that `LABELMILL_GROWTH=1e6,1e7 cargo bench --features testing --bench kernels` prints, from the files
that are named or from the standard input; cells may be empty, and other tables are left out. A neighbour has the next
number of annotations, annotators or classes, or the next kind of weights; cells are compared by their nanoseconds an
annotation and class.
"""

from __future__ import annotations

import fileinput
import re
from collections.abc import Iterable

HEADER = ["annotations", "annotators", "weights"]
WEIGHTS = ("None", "Few", "All")
UNITS = {"": 1.0, "k": 1e3, "M": 1e6}
MAX_NEIGHBOUR = 3.0
MAX_WEIGHTS = 1.5

Cell = tuple[float, float, int, int]
"""Annotations, annotators, the index of the weights, and classes."""


def number(text: str) -> float:
    """A number such as `1e6`, `100000` or `5 M`."""
    digits, unit = re.fullmatch(r"([\d.e+]+) ?([kM]?)", text).groups()
    return float(digits) * UNITS[unit]


def cells(lines: Iterable[str]) -> dict[Cell, float]:
    """The cells of all tables; of a cell in two tables, the last one counts."""
    found, classes = {}, None
    for line in lines:
        columns = [column.strip() for column in line.strip().strip("|").split("|")]
        if columns[:3] == HEADER:
            classes = [int(column.removesuffix(" classes")) for column in columns[3:]]
        elif not line.startswith("|"):
            classes = None
        elif classes and columns[2] in WEIGHTS:
            row = number(columns[0]), number(columns[1]), WEIGHTS.index(columns[2])
            for count, text in zip(classes, columns[3:]):
                if match := re.match(r"[\d.]+", text):
                    found[*row, count] = float(match.group())
    return found


def neighbours(table: dict[Cell, float]) -> list[tuple[float, Cell, Cell]]:
    """The ratio of each pair of neighbours, the dearer one first."""
    pairs = []
    for axis in range(4):
        lines: dict[tuple, list[Cell]] = {}
        for cell in sorted(table):
            lines.setdefault((*cell[:axis], *cell[axis + 1 :]), []).append(cell)
        for line in lines.values():
            for pair in zip(line, line[1:]):
                cheap, dear = sorted(pair, key=table.__getitem__)
                pairs.append((table[dear] / table[cheap], dear, cheap))
    return sorted(pairs, reverse=True)


def weighted(table: dict[Cell, float]) -> list[tuple[float, Cell]]:
    """The ratio of each cell with weights to the same cell without."""
    plain = {cell: table.get((*cell[:2], 0, cell[3])) for cell in table if cell[2] > 0}
    return sorted(((table[cell] / cost, cell) for cell, cost in plain.items() if cost), reverse=True)


def name(cell: Cell) -> str:
    annotations, annotators, weights, classes = cell
    return f"{annotations:g} / {annotators:g} / {WEIGHTS[weights]} / {classes}"


def verdict(table: dict[Cell, float]) -> list[str]:
    pairs = neighbours(table)
    lines = [f"{len(table)} cells, {len(pairs)} pairs of neighbours"]
    for ratio, dear, cheap in pairs:
        if ratio > MAX_NEIGHBOUR:
            lines.append(f"{ratio:.2f} times its neighbour: {name(dear)}  beside  {name(cheap)}")
    for ratio, cell in weighted(table):
        if ratio > MAX_WEIGHTS:
            lines.append(f"{ratio:.2f} times no weights: {name(cell)}")
    return lines


if __name__ == "__main__":
    print(*verdict(cells(fileinput.input())), sep="\n")
