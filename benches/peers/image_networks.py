"""The networks for images of labelmill, written in PyTorch, and the time of their epochs."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
RESNET20 = (16, 16, 16, 32, 32, 32, 64, 64, 64)


def normed(channels: int, to: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(channels, to, 3, stride, padding=1), nn.BatchNorm2d(to)]


class Block(nn.Module):
    """A residual block with the shortcut of He et al.'s option A."""

    def __init__(self, channels: int, to: int) -> None:
        super().__init__()
        self.stride, self.more = (1, 0) if channels == to else (2, to - channels)
        layers = [*normed(channels, to, self.stride), nn.ReLU(), *normed(to, to)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        beside = x[:, :, :: self.stride, :: self.stride]
        beside = functional.pad(beside, (0, 0, 0, 0, 0, self.more))
        return functional.relu(self.layers(x) + beside)


def network(kind: str, channels: int, classes: int) -> nn.Module:
    """A network for MNIST's images (`lenet`), or for images of 32 x 32 pixels (the others)."""
    if kind == "lenet":
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
        )  # fmt: skip
    layers: list[nn.Module] = []
    if kind == "vgg16":
        for to in VGG16:
            layers += [*normed(channels, to), nn.ReLU()] if to else [nn.MaxPool2d(2)]
            channels = to or channels
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, classes))
    layers, channels = [*normed(channels, 16), nn.ReLU()], 16
    for to in RESNET20:
        layers.append(Block(channels, to))
        channels = to
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def epoch_seconds(
    kind: str, shape: tuple[int, int, int], rows: int, batch: int, epochs: int, device: str
) -> list[float]:
    """The time of each epoch: Adam, on noise already on the device."""
    model = network(kind, shape[0], 10).to(device).train()
    features = torch.randn(rows, *shape, device=device)
    classes = torch.randint(10, (rows,), device=device)
    optimiser = torch.optim.Adam(model.parameters())
    seconds = []
    for _ in range(epochs):
        start = time.perf_counter()
        for step in torch.randperm(rows).split(batch):
            optimiser.zero_grad()
            at = step.to(device)
            loss = functional.cross_entropy(model(features[at]), classes[at])
            loss.backward()
            optimiser.step()
            loss.item()
        seconds.append(time.perf_counter() - start)
    return seconds
