"""The networks for images of labelmill, written in PyTorch, and the time of their epochs."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional

from resnet20 import ResNet20

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


def network(kind: str, channels: int, classes: int) -> nn.Module:
    """A network for MNIST's images (`lenet`), or for images of 32 x 32 pixels (the others)."""
    if kind == "lenet":
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
        )  # fmt: skip
    if kind == "resnet20":
        return ResNet20(channels, classes)
    layers: list[nn.Module] = []
    for to in VGG16:
        if to == 0:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += [nn.Conv2d(channels, to, 3, padding=1), nn.BatchNorm2d(to), nn.ReLU()]
            channels = to
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, classes))


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
