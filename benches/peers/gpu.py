"""Networks on a GPU: agreement with the CPU, times beside those of PyTorch, and where a GPU pays, as Markdown.

Needs the binary, a GPU with its driver, and the CUDA libraries that the binary is linked to; PyTorch, where it is
installed, is measured on the same GPU. Without `--device cpu` a labelmill that was built without CUDA fails. A case
that takes longer than `--case-seconds` is stopped, cases that are not over after `--seconds` are left out, and the
report names both. Exits with 1 where a model's tables differ or training does not change them, or labelmill fails or
does not finish.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
TOLERANCE = 1e-4
EPOCHS = 4
"""Fewer than five: by default, parameters of annotators are frozen in a fifth of the epochs, rounded down."""
SECONDS, CASE_SECONDS = 570.0, 90.0

AGREEMENT = """
{train}.epochs = 1
{train}.batch_size = 32
{train}.optimiser = {{ {optimiser}, learning_rate = {rate} }}
"""
SGD = 'rule = "sgd"'
"""Plain SGD: Adam divides a gradient by its size, and so turns the rounding error of a zero gradient into a step."""
ADAPTIVE = 'rule = "{rule}", epsilon = 0.01'
"""Adam or AMSGrad, with an epsilon so large that a gradient of rounding errors remains a small step."""
CLIPPED = 'rule = "sgd", clip_norm = 0.05'
"""Most gradients are longer and are scaled to 0.05, whatever their length, so that a wrong norm shows."""
UNTRAINED = 1e-12
"""A learning rate at which an epoch leaves a network as it is."""
LEAST_CHANGE = 10 * TOLERANCE
"""The least by which training has to change a prediction: networks that are not trained agree anyway."""
BF16_TOLERANCE = 0.03
"""bfloat16 has eight bits of precision, so that a logit of 4 is rounded by up to 0.008: a bound by estimate."""
TIMING = """
model.train.epochs = {epochs}
model.train.batch_size = {batch}
model.train.optimiser = {{ rule = "adam", learning_rate = 0.001, weight_decay = 0.0 }}
"""
GEM = """
model.kind = "gem"
model.classifier.kind = "network"
model.classifier.network.backbone = { hidden = [32], dropout = 0.0 }
model.stop = { max_iter = 2, tol = 0.0 }
"""
"""The same number of rounds on both devices: one that trains the network, and one that leaves it as it is."""
CONAL = """
model.kind = "conal"
model.backbone = { kind = "mlp", hidden = [128], dropout = 0.5, batch_norm = false }
"""
FEATURES = """
COPY (SELECT 'i' || n AS instance_id, arrow_cast(make_array({features}), 'List(Float32)') AS features
FROM (SELECT value AS n, value % {classes} + 1 AS class FROM range(0, {instances}))) TO '{path}'
"""
FEATURE = "sin({by_class:.4f} * class) + 2 * sin(78.233 * n + {by_instance:.3f})"
ANNOTATIONS = """
COPY (SELECT 'i' || i.value AS instance_id, 'a' || ((i.value * {each} + j.value) % {annotators}) AS annotator_id,
    'c' || CASE WHEN (i.value * 7 + j.value * 3) % 5 = 0 THEN (i.value + 1) % {classes}
        ELSE i.value % {classes} END AS label
FROM range(0, {instances}) AS i CROSS JOIN range(0, {each}) AS j) TO '{path}'
"""
"""Features near the centre of their class, and labels of which one in five is wrong; the same on every machine."""
OF_MNIST = {
    "annotations": """
COPY (SELECT instance_id, 'a' || ((i * {each} + j.value) % {annotators}) AS annotator_id,
    'c' || CASE WHEN (i * 7 + j.value * 3) % 5 = 0 THEN (class + 1) % 10 ELSE class END AS label
FROM (SELECT instance_id, CAST(substr(instance_id, 6) AS BIGINT) AS i, CAST(label AS BIGINT) AS class FROM truth
    WHERE split = 'train') AS images CROSS JOIN range(0, {each}) AS j WHERE i < {instances}) TO '{path}'
""",
    "features": """
COPY (SELECT instance_id, arrow_cast(pixels, 'FixedSizeList(784, Float32)') AS features FROM images
WHERE split = 'train' AND CAST(substr(instance_id, 6) AS BIGINT) < {instances}) TO '{path}'
""",
}
"""The same labels for MNIST's first training images, whose names are their places."""
TABLES = {
    "posteriors": "SELECT instance_id, class, probability FROM posteriors ORDER BY 1, 2",
    "predictions": "SELECT instance_id, class, probability FROM predictions ORDER BY 1, 2",
}


class Failed(Exception):
    """A command ended with an error."""


class LeftOut(Exception):
    """There is no time left for a case, or its own time is over."""


@dataclass
class Clock:
    """The time of the whole report, and of each case."""

    seconds: float
    case_seconds: float
    start: float = field(default_factory=time.monotonic)
    left_out: list[str] = field(default_factory=list)

    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @contextmanager
    def limit(self, what: str) -> Iterator[None]:
        """Raises `LeftOut` where the time of a case is over; a child process that it waits for is then killed."""
        remaining = self.seconds - self.elapsed()
        seconds = min(self.case_seconds, remaining)
        reason = f"stopped after {seconds:.0f} s" if remaining > 0 else "no time left"

        def stop(*_: object) -> None:
            raise LeftOut(reason)

        before = signal.signal(signal.SIGALRM, stop)
        try:
            if remaining <= 0:
                raise LeftOut(reason)
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        except LeftOut:
            self.left_out.append(f"{what} ({reason})")
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class CrowdSpec:
    """The sizes of a crowd with features."""

    instances: int
    shape: tuple[int, ...]
    annotators: int
    classes: int
    each: int = 3
    mnist: Path | None = None
    """The folder of MNIST, whose images are the features; they are generated without."""

    def description(self) -> str:
        """The data, for a table."""
        size = " x ".join(map(str, self.shape))
        return f"{self.instances} images of {'MNIST' if self.mnist else size}"


@dataclass(frozen=True)
class Labelmill:
    binary: Path
    folder: Path

    def call(self, *words: object) -> str:
        command = [str(word) for word in (self.binary, *words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr.strip()}")
        return done.stdout

    def kinds(self) -> list[str]:
        """The kinds whose classifier is always a network."""
        models = json.loads(self.call("models", "--json"))
        return [m["kind"] for m in models if "backbone" in m["parameters"]["properties"]]

    def write(self, crowd: CrowdSpec) -> tuple[Path, Path]:
        """Writes the annotations and features of a crowd, unless an earlier run did."""
        name = f"{crowd.instances}-{math.prod(crowd.shape)}-{crowd.annotators}-{crowd.classes}"
        name += "-mnist" if crowd.mnist else ""
        paths = self.folder / f"annotations-{name}.parquet", self.folder / f"features-{name}.parquet"
        if not all(path.exists() for path in paths):
            queries, tables = [ANNOTATIONS, FEATURES], []
            if crowd.mnist:
                queries = [OF_MNIST["annotations"], OF_MNIST["features"]]
                sources = {"truth": "truth.parquet", "images": "features.parquet"}
                for table, file in sources.items():
                    tables += ["--table", f"{table}={crowd.mnist / file}"]
            numbers = range(math.prod(crowd.shape))
            features = (FEATURE.format(by_class=12.9898 * (j + 1), by_instance=37.719 * j) for j in numbers)
            values = vars(crowd) | {"features": ", ".join(features)}
            # A file, because the query for images is longer than an argument may be.
            file = self.folder / "query.sql"
            for query, path in zip(queries, paths, strict=True):
                file.write_text(query.format(**values, path=path))
                self.call("sql", *tables, "--write", file)
        return paths

    def run(self, crowd: CrowdSpec, device: str, settings: str, network: str = "model") -> Path:
        """Runs a job, whose network has its settings in the table `network`; returns the folder of its tables."""
        annotations, features = self.write(crowd)
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        pipeline, sink = folder / "pipeline.toml", folder / "run"
        paths = {"source.annotations": annotations, "source.features": features, "sink.url": sink}
        lines = [f"{key} = {json.dumps(str(path))}" for key, path in paths.items()]
        pipeline.write_text("\n".join([*lines, f'{network}.device = "{device}"', settings]))
        self.call("run", pipeline, "--quiet")
        return sink

    def query(self, run: Path, query: str) -> list[dict]:
        return [json.loads(line) for line in self.call("sql", "--run", run, "--json", "-c", query).splitlines()]

    def seconds(self, crowd: CrowdSpec, device: str, settings: str) -> float:
        """The median time of the epochs after the first."""
        run = self.run(crowd, device, settings)
        return median(row["seconds"] for row in self.query(run, "SELECT step, seconds FROM trace WHERE step > 1"))


def difference(left: list[dict], right: list[dict]) -> float:
    """The largest difference of probabilities; infinite if the two sides have other instances or classes."""
    ids = [[(row["instance_id"], row["class"]) for row in rows] for rows in (left, right)]
    if ids[0] != ids[1] or not ids[0]:
        return math.inf
    pairs = ((a["probability"], b["probability"]) for a, b in zip(left, right, strict=True))
    distances = [abs(a - b) for a, b in pairs]
    return math.inf if any(math.isnan(d) for d in distances) else max(distances)


@dataclass(frozen=True)
class AgreementCase:
    """A job whose tables are compared with those of the processor."""

    what: str
    crowd: CrowdSpec
    settings: str
    optimiser: str = SGD
    rate: float = 0.02
    network: str = "model"
    """The table of the network's settings."""
    precision: str = "f32"

    def all_settings(self, rate: float) -> str:
        train = f"{self.network}.train" if self.network == "model" else self.network
        settings = AGREEMENT.format(train=train, optimiser=self.optimiser, rate=rate)
        return f'{self.settings}{settings}{train}.precision = "{self.precision}"\n'

    def tolerance(self, of_f32: float) -> float:
        return of_f32 if self.precision == "f32" else max(of_f32, BF16_TOLERANCE)


def comparisons(labelmill: Labelmill, mnist: Path | None, scale: float) -> list[AgreementCase]:
    crowd = CrowdSpec(max(60, round(600 * scale)), (16,), 9, 3)
    plain = "model.backbone = { hidden = [32], dropout = 0.0 }"
    kinds = labelmill.kinds()
    cases = []
    for kind in kinds:
        cases.append(AgreementCase(kind, crowd, f'model.kind = "{kind}"\n{plain}'))
    cases.append(AgreementCase("gem, network", crowd, GEM, network="model.classifier.network"))
    layers = f'model.kind = "crowd_layer"\n{plain}'
    for rule in ("adam", "amsgrad"):
        optimiser = ADAPTIVE.format(rule=rule)
        cases.append(AgreementCase(f"crowd_layer, {rule}", crowd, layers, optimiser, 0.001))
    cases.append(AgreementCase("crowd_layer, gradients clipped", crowd, layers, CLIPPED, 0.1))
    bf16 = f"crowd_layer, bf16 (at most {BF16_TOLERANCE:g})"
    cases.append(AgreementCase(bf16, crowd, layers, precision="bf16"))
    # The device computes masks and moves images itself, with the random numbers that the processor uses.
    dropout = 'model.kind = "dl"\nmodel.backbone = { hidden = [32, 16], dropout = 0.5 }'
    cases.append(AgreementCase("dl, dropout masks computed on the device", crowd, dropout))
    # Batch norms of 32 rows amplify rounding errors: at a rate of 0.02, inputs that differ by 1e-6 give VGG-16 predictions
    # that differ by 0.05 on the processor alone.
    for backbone, shape, rate, more in (
        ("lenet", (1, 28, 28), 0.05, ""), ("vgg16", (3, 32, 32), 0.001, ""), ("resnet20", (3, 32, 32), 0.002, ""),
        ("resnet20", (3, 32, 32), 0.002, ", pad_crop = 4, flip = true"),
    ):  # fmt: skip
        of_mnist = mnist if backbone == "lenet" else None
        classes = 10 if of_mnist else 3
        images = CrowdSpec(max(64, round(128 * scale)), shape, 9, classes, mnist=of_mnist)
        settings = f'model.kind = "dl"\nmodel.backbone = {{ kind = "{backbone}", input = {list(shape)}{more} }}'
        what = f"dl, {backbone}{', cropped and flipped on the device' if more else ''}{' on MNIST' if of_mnist else ''}"
        cases.append(AgreementCase(what, images, settings, rate=rate))
    return cases


def agreement(
    labelmill: Labelmill, device: str, mnist: Path | None, scale: float, tolerance: float, clock: Clock
) -> tuple[list[str], bool]:
    """The lines of the table, and whether all agree."""
    lines, agree = [], True
    for case in comparisons(labelmill, mnist, scale):

        def tables(on: str, rate: float, case: AgreementCase = case) -> list[list[dict]]:
            run = labelmill.run(case.crowd, on, case.all_settings(rate), case.network)
            return [labelmill.query(run, query) for query in TABLES.values()]

        try:
            with clock.limit(case.what):
                of_cpu, of_gpu = tables("cpu", case.rate), tables(device, case.rate)
                untrained = tables("cpu", UNTRAINED)
            found = [difference(*pair) for pair in zip(of_cpu, of_gpu, strict=True)]
            change = difference(of_cpu[-1], untrained[-1])
            is_near = max(found) <= case.tolerance(tolerance) and change >= LEAST_CHANGE
            cells, verdict = [f"{distance:.1e}" for distance in (*found, change)], "yes" if is_near else "NO"
        except (Failed, LeftOut) as failure:
            print(failure, file=sys.stderr)
            is_near, cells = False, [""] * (len(TABLES) + 1)
            verdict = "FAILED" if isinstance(failure, Failed) else "left out"
        agree &= is_near
        lines.append(f"| {case.what} | {' | '.join(cells)} | {verdict} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines, agree


def image_peer(kind: str, crowd: CrowdSpec, batch: int, device: str) -> float:
    from image_networks import epoch_seconds

    return median(epoch_seconds(kind, crowd.shape, crowd.instances, batch, EPOCHS, device)[1:])


def conal_peer(crowd: CrowdSpec, batch: int, device: str) -> float:
    """The time of an epoch of the dense form, scaled up from a few steps."""
    import network_cases
    from dense_conal import train_torch

    case = network_cases.NetworkCase(
        "gpu", crowd.instances, crowd.shape[0], crowd.annotators, crowd.classes, crowd.each, (batch,),
        epochs=3, peer_steps=5 if crowd.annotators > 10_000 else 20,
    )  # fmt: skip
    return train_torch(case, network_cases.FeatureCrowd(case), batch, device).steady_seconds()


@dataclass(frozen=True)
class TimingCase:
    """A network whose epochs are timed on both sides."""

    what: str
    crowd: CrowdSpec
    batch: int
    settings: str
    peer: Callable[[], float]


def networks(device: str, mnist: Path | None, scale: float) -> list[TimingCase]:
    cases = []
    for kind, shape, instances, batch in (
        ("lenet", (1, 28, 28), 8192, 128), ("vgg16", (3, 32, 32), 2048, 128), ("resnet20", (3, 32, 32), 2048, 128),
    ):  # fmt: skip
        of_mnist = mnist if kind == "lenet" else None
        crowd = CrowdSpec(max(128, round(instances * scale)), shape, 50, 10, mnist=of_mnist)
        settings = f'model.kind = "dl"\nmodel.backbone = {{ kind = "{kind}", input = {list(shape)} }}'
        peer = partial(image_peer, kind, crowd, batch, device)
        cases.append(TimingCase(f"{kind}, {crowd.description()}", crowd, batch, settings, peer))
    for annotators in (2_000, 50_000):
        crowd = CrowdSpec(max(512, round(20_000 * scale)), (128,), max(8, round(annotators * scale)), 10)
        what = f"conal, {crowd.instances} instances, {crowd.annotators} annotators"
        peer = partial(conal_peer, crowd, 256, device)
        cases.append(TimingCase(what, crowd, 256, CONAL, peer))
    return cases


def timings(
    labelmill: Labelmill, device: str, mnist: Path | None, scale: float, torch: bool, clock: Clock
) -> tuple[list[str], bool]:
    """The lines of the table, and whether every run of labelmill succeeded."""
    lines, complete = [], True
    for case in networks(device, mnist, scale):
        try:
            with clock.limit(case.what):
                settings = case.settings + TIMING.format(epochs=EPOCHS, batch=case.batch)
                seconds = labelmill.seconds(case.crowd, device, settings)
            own = f"{seconds * 1e3:.1f} ms"
        except (Failed, LeftOut) as failure:
            print(failure, file=sys.stderr)
            seconds, complete = None, False
            own = "FAILED" if isinstance(failure, Failed) else "left out"
        other, ratio = "", ""
        if torch:
            try:
                with clock.limit(f"PyTorch, {case.what}"):
                    of_peer = case.peer()
                other = f"{of_peer * 1e3:.1f} ms"
                ratio = f"{of_peer / seconds:.2g}" if seconds else ""
            except (ImportError, RuntimeError) as error:
                print(f"PyTorch, {case.what}: {error}", file=sys.stderr)
                other = "not measured"
            except LeftOut as reason:
                print(f"PyTorch, {case.what}: {reason}", file=sys.stderr)
                other = "left out"
        lines.append(f"| {case.what} | {case.batch} | {own} | {other} | {ratio} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines, complete


def around_the_bound(labelmill: Labelmill, device: str, scale: float, clock: Clock) -> list[str]:
    """The time of a step on the processor and on the GPU, of networks around the bound of `device = "auto"`."""
    lines = []
    for width, hidden, batch in (
        (128, 128, 64), (512, 512, 64), (1024, 512, 64), (1024, 512, 256), (1024, 1024, 256), (2048, 2048, 256),
    ):  # fmt: skip
        crowd = CrowdSpec(max(batch, round(32 * batch * scale)), (width,), 50, 8)
        settings = f'model.kind = "dl"\nmodel.backbone = {{ hidden = [{hidden}] }}'
        settings += TIMING.format(epochs=EPOCHS, batch=batch)
        what = f"mlp, {width} features, {hidden} hidden"
        try:
            with clock.limit(what):
                steps = crowd.instances / batch
                cpu, gpu = (labelmill.seconds(crowd, on, settings) * 1e3 / steps for on in ("cpu", device))
            cells = [f"{cpu:.2f} ms", f"{gpu:.2f} ms", f"{cpu / gpu:.2g}"]
        except (Failed, LeftOut) as failure:
            print(failure, file=sys.stderr)
            cells = ["", "", "FAILED" if isinstance(failure, Failed) else "left out"]
        products = batch * hidden * (width + crowd.classes) / 1e6
        lines.append(f"| {what} | {batch} | {products:.0f} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines


def first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE)
    except OSError:
        return ""
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return lines[0].strip() if lines else ""


def torch_in_f32() -> str:
    """Has PyTorch compute products and convolutions in f32, as labelmill without cuDNN does; returns its version."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return f"PyTorch {torch.__version__} without TF32"


def heading(labelmill: Labelmill, torch: str, device: str, scale: float) -> str:
    """The machine, and the versions of both sides."""
    gpu = first_line("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    on = f"{gpu.replace(', ', ', driver ')}" if gpu else "no GPU found"
    if device == "cpu":
        on = f"the processor on both sides, a trial of this script and no measurement ({platform.machine()})"
    commit = first_line("git", "describe", "--always", "--dirty") or "unknown"
    version = labelmill.call("--version").strip()
    trial = "" if scale == 1 else f" Crowds are scaled by {scale:g}."
    scripts = f"scripts of commit {commit}"
    return f"{version}, {scripts}, {torch}; on {on}, with {os.cpu_count()} processors.{trial}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu.sh", description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=Path, help="labelmill, built with --features cuda")
    parser.add_argument("--device", default="cuda", help='"cpu" tries this script without a GPU (default: cuda)')
    data = os.environ.get("LABELMILL_DATA")
    parser.add_argument(
        "--data", type=Path, default=data and Path(data),
        help="the datasets, for LeNet on MNIST (default: $LABELMILL_DATA; without, its images are generated)",
    )  # fmt: skip
    parser.add_argument("--scale", type=float, default=1.0, help="shrink every crowd, for a trial")
    parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=f"default: {TOLERANCE:g}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for everything; default: {SECONDS:g}")
    parser.add_argument("--case-seconds", type=float, default=CASE_SECONDS, help=f"default: {CASE_SECONDS:g}")
    parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    parts = ("agreement", "times", "bound")
    parser.add_argument("--only", choices=parts, action="append", help="one part of the report; may be repeated")
    options = parser.parse_args()
    if not options.binary.is_file():
        parser.error(f"no labelmill at {options.binary}")
    mnist = options.data / "mnist" if options.data else None
    if mnist and not mnist.is_dir():
        parser.error(f"no folder {mnist}")
    torch = not options.no_torch and find_spec("torch") is not None
    clock = Clock(options.seconds, options.case_seconds)
    with tempfile.TemporaryDirectory() as folder:
        labelmill = Labelmill(options.binary.resolve(), Path(folder))
        peer = torch_in_f32() if torch else "no PyTorch"
        versions = heading(labelmill, peer, options.device, options.scale)
        print(f"# Networks on a GPU\n\n{versions}\n")
        only, agree, complete = options.only or parts, True, True
        if "agreement" in only:
            near, agree = agreement(labelmill, options.device, mnist, options.scale, options.tolerance, clock)
            print("The largest difference of a probability from that of the processor, after one epoch; at most")
            print(f"{options.tolerance:g} is wanted. The last number is the largest change of a prediction by training,")
            print(f"at least {LEAST_CHANGE:g}:\n")
            print(f"| model | {' | '.join(TABLES)} | change | agrees |\n| --- |{' --- |' * (len(TABLES) + 2)}")
            print("\n".join(near), end="\n\n", flush=True)
        if "times" in only:
            lines, complete = timings(labelmill, options.device, mnist, options.scale, torch, clock)
            print(f"The median epoch of {EPOCHS - 1} after the first; of CoNAL, PyTorch computes the dense form:\n")
            print("| network | batch | labelmill | PyTorch | ratio |\n| --- | --- | --- | --- | --- |")
            print("\n".join(lines), end="\n\n", flush=True)
        if "bound" in only:
            lines = around_the_bound(labelmill, options.device, options.scale, clock)
            print("The time of a step; millions of multiply-adds are those of its forward pass:\n")
            print("| network | batch | multiply-adds | processor | GPU | ratio |\n| --- | --- | --- | --- | --- | --- |")
            print("\n".join(lines), end="\n\n")
    if clock.left_out:
        print(f"Left out: {'; '.join(clock.left_out)}.\n")
    print(f"This report took {clock.elapsed():.0f} s.")
    return 0 if agree and complete else 1


if __name__ == "__main__":
    sys.exit(main())
