"""The backbone `resnet20` in PyTorch, with the names and layouts of a saved model."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

CHANNELS = (16, 16, 16, 32, 32, 32, 64, 64, 64)
"""The channels of each residual block."""


class ResNet20(nn.Module):
    """He et al. 2016 for small images; the shortcuts are those of option A, which have no parameters."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16)
        width = 16
        for n, to in enumerate(CHANNELS):
            stride = 1 if to == width else 2
            self.add_module(f"block{n}_convolution0", nn.Conv2d(width, to, 3, stride, padding=1))
            self.add_module(f"block{n}_norm0", nn.BatchNorm2d(to))
            self.add_module(f"block{n}_convolution1", nn.Conv2d(to, to, 3, padding=1))
            self.add_module(f"block{n}_norm1", nn.BatchNorm2d(to))
            width = to
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.convolution(x)))
        for n in range(len(CHANNELS)):
            convolution0, norm0, convolution1, norm1 = (
                self.get_submodule(f"block{n}_{part}")
                for part in ("convolution0", "norm0", "convolution1", "norm1")
            )
            y = norm1(convolution1(functional.relu(norm0(convolution0(x)))))
            if y.shape != x.shape:
                x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))
            x = functional.relu(y + x)
        return self.classifier(x.mean(dim=(2, 3)))
