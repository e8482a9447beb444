"""Compares labelmill with crowd-kit and DuckDB, and prints the ratios next to their targets.

This process uses only the standard library and leaves the work to child processes: Linux never
reports a lower peak memory for a child than for the process that started it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from comparison import GROUPS, NOT_BY_DEFAULT, PeerComparison
from labelmill import LabelmillCommand, default_binary
from measure import HERE
from report import Row, machine, summary, table


def groups(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(GROUPS):
        raise argparse.ArgumentTypeError(f"no such cases: {', '.join(sorted(unknown))}")
    return names


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cases",
        type=groups,
        default=[name for name in GROUPS if name not in NOT_BY_DEFAULT],
        help=f"of {','.join(GROUPS)} (default: without 100m, which takes 10 GB and a while, and "
        "glad, which takes crowd-kit minutes)",
    )
    parser.add_argument("--data", type=Path, default=HERE / "data", help="keep the crowds here")
    parser.add_argument("--labelmill", type=Path, default=default_binary(), help="the binary")
    parser.add_argument("--runs", type=int, default=3, help="runs behind each median (default: 3)")
    parser.add_argument("--json", type=Path, help="write all the measurements to this file")
    parser.add_argument("--scale", type=float, default=1.0, help="shrink every crowd, for a trial")
    parser.add_argument(
        "--skip-peer-10m", action="store_true", help="no crowd-kit at 10m (minutes, many GB)"
    )
    options = parser.parse_args()
    if not options.labelmill.is_file():
        parser.error(f"no labelmill at {options.labelmill}: build a release or name one")
    return options


def write_json(path: Path, host: dict, comparison: PeerComparison, rows: list[Row]) -> None:
    report = {
        "machine": host,
        "scale": comparison.scale,
        "rows": [summary(row) for row in rows],
        "measurements": comparison.measurements,
    }
    path.write_text(json.dumps(report, indent=2) + "\n")


def print_report(host: dict, scale: float, rows: list[Row]) -> None:
    peers = ", ".join(f"{name} {number}" for name, number in host["peers"].items())
    print(f"{host['cpu']}, {host['cores']} cores; {host['labelmill']}; {peers}")
    if scale != 1:
        print(f"The crowds are shrunk to {scale:g}: the targets are for the whole ones.")
    print(table(rows))


def main() -> int:
    options = arguments()
    data = options.data if options.scale == 1 else options.data / f"scale-{options.scale:g}"
    data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data) as folder:
        scratch = Path(folder)
        labelmill = LabelmillCommand(options.labelmill.resolve(), scratch)
        host = machine() | {"labelmill": labelmill.version()}
        comparison = PeerComparison(
            labelmill, data, scratch, options.scale, options.runs, options.skip_peer_10m
        )
        rows = comparison.compare(options.cases)
    if options.json:
        write_json(options.json, host, comparison, rows)
    print_report(host, options.scale, rows)
    return 1 if any(row.failure for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
