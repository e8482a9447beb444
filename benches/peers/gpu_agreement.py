"""Whether networks that are trained on a GPU agree with those of the processor."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from gpu_runs import Clock, CrowdSpec, Failed, Labelmill, LeftOut

TOLERANCE = 1e-4
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
LARGEST_SHARE = 0.02
"""The largest difference in f32, as a share of that change: more could be a gradient that is wrong."""
BF16_TOLERANCE = 0.03
"""bfloat16 has eight bits of precision, so that a logit of 4 is rounded by up to 0.008: a bound by estimate."""
GEM = """
model.kind = "gem"
model.classifier.kind = "network"
model.classifier.network.backbone = { hidden = [32], dropout = 0.0 }
model.stop = { max_iter = 2, tol = 0.0 }
"""
"""The same number of rounds on both devices: one that trains the network, and one that leaves it as it is."""
TABLES = {
    "posteriors": "SELECT instance_id, class, probability FROM posteriors ORDER BY 1, 2",
    "predictions": "SELECT instance_id, class, probability FROM predictions ORDER BY 1, 2",
}


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
            is_near &= case.precision != "f32" or found[-1] <= LARGEST_SHARE * change
            cells, verdict = [f"{distance:.1e}" for distance in (*found, change)], "yes" if is_near else "NO"
        except (Failed, LeftOut) as failure:
            print(failure, file=sys.stderr)
            is_near, cells = False, [""] * (len(TABLES) + 1)
            verdict = "FAILED" if isinstance(failure, Failed) else "left out"
        agree &= is_near
        lines.append(f"| {case.what} | {' | '.join(cells)} | {verdict} |")
        print(lines[-1], file=sys.stderr, flush=True)
    return lines, agree
