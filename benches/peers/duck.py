"""Runs one query in DuckDB and prints its seconds and its rows as JSON."""

from __future__ import annotations

import argparse
import json
import time

import duckdb


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("query")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()

    connection = duckdb.connect()
    connection.execute(f"SET threads = {options.threads}")
    start = time.perf_counter()
    rows = connection.execute(options.query).fetchall()
    seconds = time.perf_counter() - start
    print(json.dumps({"query_seconds": seconds, "rows": rows}))


if __name__ == "__main__":
    main()
