"""The times of networks on a GPU, beside those of PyTorch and of the processor."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from gpu_runs import Clock, CrowdSpec, Failed, Labelmill, LeftOut

EPOCHS = 4
"""Fewer than five: by default, parameters of annotators are frozen in a fifth of the epochs, rounded down."""
TIMING = """
model.train.epochs = {epochs}
model.train.batch_size = {batch}
model.train.optimiser = {{ rule = "adam", learning_rate = 0.001, weight_decay = 0.0 }}
"""
CONAL = """
model.kind = "conal"
model.backbone = { kind = "mlp", hidden = [128], dropout = 0.5, batch_norm = false }
"""


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
                ratio = f"{of_peer / seconds:.2f}" if seconds else ""
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
        (128, 128, 64), (256, 128, 64), (256, 256, 64), (512, 256, 64), (512, 512, 64), (1024, 512, 64), (1024, 512, 256), (1024, 1024, 256), (2048, 2048, 256),
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
