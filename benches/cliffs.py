#!/usr/bin/env python3
"""Names the cells of a growth table that cost more than three times a neighbour, or more than 1.5 times no weights.

Reads the table that `LABELMILL_GROWTH=1e6,1e7 cargo bench --bench kernels` prints, the first one of the files that are
named or of the standard input. A neighbour has the next number of annotations, annotators or classes, or the next kind of weights;
cells are compared by their nanoseconds an annotation and class.
"""

from __future__ import annotations

import fileinput
import re

CLASSES = ("5", "6", "8", "20", "50")
WEIGHTS = ("None", "Few", "All")
MAX_NEIGHBOUR = 3.0
MAX_WEIGHTS = 1.5

Cell = tuple[str, str, str, str]
"""Annotations, annotators, weights, classes."""


def cells(lines: list[str]) -> dict[Cell, float]:
    found = {}
    for line in lines:
        columns = [column.strip() for column in line.strip().strip("|").split("|")]
        if len(columns) != 3 + len(CLASSES) or columns[2] not in WEIGHTS:
            if found:
                break
            continue
        for classes, text in zip(CLASSES, columns[3:]):
            if match := re.match(r"[\d.]+", text):
                found[columns[0], columns[1], columns[2], classes] = float(match.group())
    return found


def neighbours(table: dict[Cell, float]) -> list[tuple[float, Cell, Cell]]:
    """The ratio of each pair of neighbours, the dearer one first."""
    values = [list(dict.fromkeys(cell[axis] for cell in table)) for axis in range(4)]
    pairs = []
    for cell, cost in table.items():
        for axis in range(4):
            at = values[axis].index(cell[axis]) + 1
            if at < len(values[axis]):
                other = (*cell[:axis], values[axis][at], *cell[axis + 1 :])
                if other in table:
                    dear, cheap = (cell, other) if cost > table[other] else (other, cell)
                    pairs.append((table[dear] / table[cheap], dear, cheap))
    return sorted(pairs, reverse=True)


def main() -> None:
    table = cells(list(fileinput.input()))
    pairs = neighbours(table)
    print(f"{len(table)} cells, {len(pairs)} pairs of neighbours")
    for ratio, dear, cheap in pairs:
        if ratio > MAX_NEIGHBOUR:
            print(f"{ratio:.2f} times its neighbour: {' / '.join(dear)}  beside  {' / '.join(cheap)}")
    for cell, cost in table.items():
        plain = table.get((cell[0], cell[1], "None", cell[3]), cost)
        if cost > MAX_WEIGHTS * plain:
            print(f"{cost / plain:.2f} times no weights: {' / '.join(cell)}")


if __name__ == "__main__":
    main()
