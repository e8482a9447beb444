"""CoNAL in PyTorch, in the dense form of its public implementations.

They compute the label logits of every annotator for every instance of a batch, a tensor
[batch, annotators, classes], and mask the labels that were not given. This does the same without
their overheads: embeddings are parameters instead of a map of one-hot rows, and there is no data
loader.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from network_cases import (
    AUXILIARY,
    DROPOUT,
    EMBEDDING,
    HIDDEN,
    LAMBDA,
    LEARNING_RATE,
    SEED,
    Epochs,
    FeatureCrowd,
    NetworkCase,
)

NO_LABEL = -1


class DenseConal(nn.Module):
    """CoNAL as published: the logits of every annotator for every instance of the batch."""

    def __init__(self, case: NetworkCase) -> None:
        super().__init__()
        self.classifier = nn.Sequential(
            nn.Linear(case.features, HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT),
            nn.Linear(HIDDEN, case.classes),
        )  # fmt: skip
        self.auxiliary = nn.Sequential(
            nn.Linear(case.features, AUXILIARY), nn.Linear(AUXILIARY, EMBEDDING)
        )
        bound = EMBEDDING**-0.5
        self.embedding = nn.Parameter(
            torch.empty(case.annotators, EMBEDDING).uniform_(-bound, bound)
        )
        start = 2 * torch.eye(case.classes)
        self.common = nn.Parameter(start.clone())
        self.individual = nn.Parameter(start.repeat(case.annotators, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, classes, annotators]."""
        p = functional.softmax(self.classifier(x), dim=1)
        instances = functional.normalize(self.auxiliary(x))
        annotators = functional.normalize(self.embedding)
        share = torch.sigmoid(torch.einsum("be,re->br", instances, annotators))[:, :, None]
        common = torch.einsum("bk,kl->bl", p, self.common)[:, None, :]
        individual = torch.einsum("bk,rkl->brl", p, self.individual)
        return (share * common + (1 - share) * individual).transpose(1, 2)

    def distance(self) -> Tensor:
        return torch.norm((self.individual - self.common).flatten(1), dim=1).sum()


def train_torch(case: NetworkCase, crowd: FeatureCrowd, batch: int, device: str = "cpu") -> Epochs:
    torch.manual_seed(SEED)
    features = torch.from_numpy(crowd.features).to(device)
    # One byte per cell: as int64, the matrix of the wide crowd would take 8 GB.
    labels = torch.full((case.instances, case.annotators), NO_LABEL, dtype=torch.int8)
    labels[crowd.instance, crowd.annotator] = torch.from_numpy(crowd.label).to(torch.int8)
    labels = labels.to(device)
    model = DenseConal(case).to(device).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    epochs = Epochs([], [])
    for _ in range(case.epochs):
        start, losses, rows = time.perf_counter(), [], 0
        steps = torch.randperm(case.instances).split(batch)[: case.peer_steps]
        for rows_of_step in steps:
            step = rows_of_step.to(device)
            optimiser.zero_grad()
            answers = labels[step].long()
            loss = functional.cross_entropy(
                model(features[step]), answers, ignore_index=NO_LABEL
            )
            loss = loss - LAMBDA * model.distance()
            loss.backward()
            optimiser.step()
            losses.append(loss.item() * len(step))
            rows += len(step)
        seconds = time.perf_counter() - start
        epochs.seconds.append(seconds * case.instances / rows)
        epochs.losses.append(sum(losses) / rows)
    return epochs
