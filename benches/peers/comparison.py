"""The comparisons and their targets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from cases import CASES, FORMS, JOB_FORMS, WIDE
from labelmill import Job, LabelmillCommand
from measure import Child, ChildFailed, parquet, quoted, run_query, run_script
from report import Row, Target, at_least, at_most, cores

GROUPS = ("1m", "50c", "10m", "wide", "100m", "glad")
NOT_BY_DEFAULT = ("100m", "glad")
ITERATIONS = 20
DAWID_SKENE = {"model.stop.max_iter": str(ITERATIONS), "model.stop.tol": "0"}
WIDE_SPREAD = at_most(1.5)
WIDE_REPEATS = 5
"""How many times as often the jobs of a tenth of a second run: three runs are too noisy."""
AGREEMENT = at_least(0.999)
GLAD_CASE = "w500"
GLAD_ITERATIONS = 7
GLAD_SPEEDUP = at_least(100)


@dataclass(frozen=True)
class EmSetup:
    """How an iteration of crowd-kit is timed, and how many times faster labelmill should be."""

    targets: dict[str, Target]
    fits: tuple[int, int] = (1, 4)
    """The iterations of two fits, the shorter first, so that any warm-up favours crowd-kit."""
    peer_runs: int | None = None


EM_SETUPS = {
    "1m": EmSetup({"string": at_least(200), "int64": at_least(80)}),
    "50c": EmSetup({"int64": at_least(60)}),
    "10m": EmSetup({"string": at_least(300), "int64": at_least(150)}, peer_runs=1),
}


@dataclass(frozen=True)
class JobSetup:
    """A job from Parquet to Parquet."""

    name: str
    model: str
    settings: dict[str, str]


JOB_SETUPS = (
    JobSetup("Dawid-Skene", "dawid_skene", {}),
    JobSetup(f"Dawid-Skene, {ITERATIONS} iterations", "dawid_skene", DAWID_SKENE),
    JobSetup("majority vote", "majority_vote", {}),
    JobSetup("majority vote, labels only", "majority_vote", {"sink.tables": '["labels"]'}),
)


@dataclass(frozen=True)
class JobLimits:
    """Limits of the jobs on one crowd: the time relative to DuckDB's query, and the memory."""

    forms: tuple[str, ...]
    targets: dict[str, Target]
    peak_memory: Target


UNBOUNDED_FORM = "uuid"
"""Its jobs are measured without a target of time."""

JOB_LIMITS = {
    "10m": JobLimits(
        JOB_FORMS,
        {"dawid_skene": at_most(1.7), "majority_vote": at_most(1.2)},
        at_most(1.5e9),
    ),
    "100m": JobLimits(
        ("int64",),
        {"dawid_skene": at_most(3), "majority_vote": at_most(1.4)},
        at_most(3e9),
    ),
}


def median_of(children: list[Child], quantity: str) -> float:
    return median(getattr(child, quantity) for child in children)


def spread(values: list[float]) -> float:
    return max(values) / min(values)


@dataclass
class PeerComparison:
    labelmill: LabelmillCommand
    data: Path
    scratch: Path
    scale: float
    runs: int
    skip_peer_10m: bool
    measurements: list[dict] = field(default_factory=list)

    def crowd(self, case: str, form: str) -> Path:
        """The file of a crowd, which is generated if it is missing."""
        file = CASES[case].file(self.data, form)
        if not file.exists():
            run_script("generate.py", self.data, case, form, "--scale", self.scale)
        return file

    def record(self, tool: str, file: Path, child: Child, **details: object) -> None:
        self.measurements.append(
            {
                "tool": tool,
                "annotations": file.stem,
                "wall_seconds": child.wall_seconds,
                "peak_bytes": child.peak_bytes,
                **details,
            }
        )

    def interleaved(
        self, steps: dict[str, Callable[[], Child]], repeats: int = 1
    ) -> dict[str, list[Child]]:
        """Runs the steps in turn, so that drift affects all of them equally."""
        children: dict[str, list[Child]] = {name: [] for name in steps}
        for _ in range(self.runs * repeats):
            for name, step in steps.items():
                children[name].append(step())
        return children

    # One iteration of expectation-maximisation (EM).

    def labelmill_iteration(self, file: Path) -> float:
        with self.labelmill.aggregate(file, "dawid_skene", DAWID_SKENE) as job:
            seconds = job.iteration_seconds()
            self.record("labelmill iteration", file, job.child, iteration_seconds=seconds)
        return seconds

    def crowdkit_iteration(self, file: Path, fits: tuple[int, int]) -> float:
        child = run_script("crowdkit_em.py", file, *fits)
        short, long = fit_seconds = child.answer()["fit_seconds"]
        seconds = (long - short) / (fits[1] - fits[0])
        self.record(
            "crowd-kit iteration", file, child, fit_seconds=fit_seconds, iteration_seconds=seconds
        )
        return seconds

    def em_iteration(self, what: str, case: str, form: str) -> list[Row]:
        setup, file = EM_SETUPS[case], self.crowd(case, form)
        labelmill = median(self.labelmill_iteration(file) for _ in range(self.runs))
        target = setup.targets.get(form)
        if self.skip_peer_10m and case == "10m":
            return [Row(what, labelmill=labelmill)]
        peer_runs = setup.peer_runs or self.runs
        peer = median(self.crowdkit_iteration(file, setup.fits) for _ in range(peer_runs))
        return [Row(what, "seconds", labelmill, peer, peer / labelmill, target)]

    # Agreement of the labels.

    def agreement(self, what: str, case: str, form: str) -> list[Row]:
        file = self.crowd(case, form)
        theirs = self.scratch / "crowd-kit-labels.parquet"
        run_script("crowdkit_em.py", file, ITERATIONS, "--labels", theirs)
        with self.labelmill.aggregate(file, "dawid_skene", DAWID_SKENE) as job:
            share = self.share_of_equal_labels(job, theirs)
        self.measurements.append({"annotations": file.stem, "share_of_equal_labels": share})
        return [Row(what, "share", share, target=AGREEMENT)]

    def share_of_equal_labels(self, job: Job, theirs: Path) -> float:
        """The share of instances with equal labels; a missing label counts as a difference."""
        query = (
            "SELECT avg(CASE WHEN ours.label = theirs.label THEN 1 ELSE 0 END) "
            f"FROM {parquet(theirs)} AS theirs "
            f"LEFT JOIN {job.table('labels')} AS ours USING (instance_id)"
        )
        [[share]] = run_query(query).answer()["rows"]
        return share

    # GLAD to the same objective.

    def glad(self, what: str, form: str) -> list[Row]:
        """The time of crowd-kit's fit, and of the labelmill iterations that reach its objective."""
        file = self.crowd(GLAD_CASE, form)
        child = run_script("crowdkit_glad.py", file, GLAD_ITERATIONS)
        theirs = child.answer()
        self.record("crowd-kit GLAD", file, child, **theirs)
        seconds = []
        for _ in range(self.runs):
            with self.labelmill.aggregate(file, "glad", {"model.stop.tol": "0"}) as job:
                seconds.append(job.seconds_to(theirs["objective"]))
                self.record("labelmill GLAD", file, job.child, fit_seconds=seconds[-1])
        ours, peer = median(seconds), theirs["fit_seconds"]
        return [Row(what, "seconds", ours, peer, peer / ours, GLAD_SPEEDUP)]

    # Whole jobs from Parquet to Parquet.

    def job(self, file: Path, setup: JobSetup) -> Child:
        with self.labelmill.aggregate(file, setup.model, setup.settings) as job:
            self.record(f"labelmill {setup.name}", file, job.child)
        return job.child

    def duckdb_mode(self, file: Path) -> Child:
        out = self.scratch / "duckdb-labels.parquet"
        query = (
            f"COPY (SELECT instance_id, mode(label) AS label FROM {parquet(file)} "
            f"GROUP BY instance_id) TO {quoted(out)} (FORMAT parquet)"
        )
        child = run_query(query, threads=cores())
        self.record("DuckDB mode", file, child, query_seconds=child.answer()["query_seconds"])
        return child

    def whole_job(self, what: str, case: str, form: str) -> list[Row]:
        file, limits = self.crowd(case, form), JOB_LIMITS[case]
        jobs = {setup.name: partial(self.job, file, setup) for setup in JOB_SETUPS}
        children = self.interleaved(jobs | {"DuckDB": partial(self.duckdb_mode, file)})
        duckdb = children.pop("DuckDB")
        query_seconds = median(child.answer()["query_seconds"] for child in duckdb)
        duckdb_bytes = median_of(duckdb, "peak_bytes")
        rows = []
        for setup in JOB_SETUPS:
            seconds = median_of(children[setup.name], "wall_seconds")
            peak = median_of(children[setup.name], "peak_bytes")
            name = f"{what}, {setup.name}"
            rows += [
                Row(
                    name,
                    "seconds",
                    seconds,
                    query_seconds,
                    seconds / query_seconds,
                    None if form == UNBOUNDED_FORM else limits.targets[setup.model],
                ),
                Row(f"{name}, memory", "bytes", peak, duckdb_bytes, target=limits.peak_memory),
            ]
        return rows

    # The cost of many annotators.

    def wide(self, what: str, form: str) -> list[Row]:
        setup = JOB_SETUPS[0]
        jobs = {case: partial(self.job, self.crowd(case, form), setup) for case in WIDE}
        children = self.interleaved(jobs, WIDE_REPEATS)
        seconds = {case: median_of(children[case], "wall_seconds") for case in WIDE}
        peaks = {case: median_of(children[case], "peak_bytes") for case in WIDE}
        return [
            *(Row(f"{what}, {case}", "seconds", seconds[case]) for case in WIDE),
            *(Row(f"{what}, {case}, memory", "bytes", peaks[case]) for case in WIDE),
            Row(f"{what}, max/min", ratio=spread([*seconds.values()]), target=WIDE_SPREAD),
            Row(f"{what}, max/min, memory", ratio=spread([*peaks.values()])),
        ]

    def sections(self, groups: list[str]) -> Iterator[tuple[str, Callable[[], list[Row]]]]:
        """The name of each requested section, and how to run it."""

        def section(run: Callable[..., list[Row]], what: str, *arguments: str):
            return what, partial(run, what, *arguments)

        for case in filter(EM_SETUPS.__contains__, groups):
            for form in FORMS:
                yield section(self.em_iteration, f"EM iteration, {case} {form}", case, form)
        if "1m" in groups:
            yield section(self.agreement, "labels equal to crowd-kit's, 1m string", "1m", "string")
        if "glad" in groups:
            yield section(self.glad, f"GLAD, {GLAD_CASE}, to the same objective", "string")
        if "wide" in groups:
            yield section(self.wide, "Dawid-Skene", "string")
        for case in filter(JOB_LIMITS.__contains__, groups):
            for form in JOB_LIMITS[case].forms:
                yield section(self.whole_job, f"{case} {form}", case, form)

    def compare(self, groups: list[str]) -> list[Row]:
        """Runs the sections; a section that fails does not stop the others."""
        rows = []
        for what, run in self.sections(groups):
            print(f"running: {what}", file=sys.stderr, flush=True)
            try:
                rows += run()
            except ChildFailed as failure:
                print(failure, file=sys.stderr)
                rows.append(Row(what, failure=str(failure)))
        return rows
