"""Runs child processes and measures them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
BYTES_PER_MAXRSS = 1 if sys.platform == "darwin" else 1024


class ChildFailed(Exception):
    """A child process ended with an error."""


@dataclass(frozen=True)
class Child:
    """A child process that has succeeded."""

    wall_seconds: float
    peak_bytes: int
    output: str

    def answer(self) -> dict:
        """The JSON that the child printed."""
        return json.loads(self.output)


def run(*command: object) -> Child:
    """Runs a command to its end and measures the wall time and peak memory of the whole process."""
    arguments = [str(argument) for argument in command]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            reason = errors.read().strip()
            raise ChildFailed(f"{shlex.join(arguments)} ended with {process.returncode}\n{reason}")
        output.seek(0)
        return Child(wall_seconds, usage.ru_maxrss * BYTES_PER_MAXRSS, output.read())


def run_script(name: str, *arguments: object) -> Child:
    """Runs one of the Python scripts in this folder."""
    return run(sys.executable, HERE / name, *arguments)


def run_query(query: str, threads: int = 1) -> Child:
    """Runs a query in DuckDB."""
    return run_script("duck.py", query, "--threads", threads)


def quoted(path: Path) -> str:
    """A path as a string literal of DuckDB."""
    return "'" + str(path).replace("'", "''") + "'"


def parquet(path: Path) -> str:
    """A file, or a glob of files, as a table expression of DuckDB."""
    return f"read_parquet({quoted(path)})"
