#!/usr/bin/env python3
"""The papers' experiments: a table with the papers' figures beside ours, printed and written to docs/papers.md.

    cargo build --release && export LABELMILL_DATA=<folder of the datasets>
    benches/papers.py lia            # LIA, table 2: accuracy by redundancy
    benches/papers.py labelme        # TCL and CoNAL: LabelMe, whole
    benches/papers.py tanno          # Tanno et al.: simulated annotators of MNIST
    benches/papers.py tcl            # TCL: IND-1 to 4, COR-1 to 4, size of the trusted set
    benches/papers.py conal          # CoNAL: common noise, lambda

Each runs within an hour on two cores; `--quick` takes minutes, with fewer draws and pictures.
"""

import argparse
import os
import platform
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from papers.conal import conal
from papers.lab import Lab
from papers.labelme import labelme
from papers.lia import lia
from papers.tanno import tanno
from papers.tcl import tcl

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "papers.md"
# (experiment, draws, draws of a quick run)
EXPERIMENTS = {"lia": (lia, 10, 1), "labelme": (labelme, 5, 1), "tanno": (tanno, 10, 2), "tcl": (tcl, 2, 1), "conal": (conal, 5, 2)}


def write_section(name: str, section: str) -> None:
    """Replaces the section of an experiment in the page."""
    text = PAGE.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    start, stop = text.index(begin) + len(begin), text.index(end)
    PAGE.write_text(text[:start] + section + text[stop:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--data", type=Path, default=os.environ.get("LABELMILL_DATA"), help="folder of the datasets")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--labelmill", default=str(target / "release" / "labelmill"))
    parser.add_argument("--draws", "--crowds", type=int, help="draws, crowds or seeds of each figure")
    parser.add_argument("--quick", action="store_true", help="minutes: fewer draws, pictures and settings")
    parser.add_argument("--pictures", type=Path, help="folder of features.parquet and truth.parquet in place of MNIST's")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="fits side by side, of one thread each")
    args = parser.parse_args()
    if args.data is None:
        parser.error("give --data, or set LABELMILL_DATA")
    experiment, *draws = EXPERIMENTS[args.name]
    draws = args.draws or draws[args.quick]
    pictures = args.pictures or args.data / "mnist"
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.jobs) as pool:
        lab = Lab(args.labelmill, args.data, pictures, draws, args.quick, pool, Path(scratch))
        section = experiment(lab)
        version = lab.call("--version").strip()
    minutes = (time.monotonic() - start) / 60
    commit = subprocess.check_output(["git", "describe", "--always", "--dirty"], text=True, cwd=ROOT).strip()
    words = f"{args.name} --draws {draws}{' --quick' * args.quick}"
    section += f"\n`benches/papers.py {words}`, {version}, commit {commit}, {platform.machine()}, "
    section += f"{args.jobs} at once, {minutes:.0f} minutes.\n"
    print(section)
    write_section(args.name, section)


if __name__ == "__main__":
    main()
