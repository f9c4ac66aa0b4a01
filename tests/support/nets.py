"""Small nets on six numbers with different layouts of axes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from submodel.data import Dataset, dataset


class Joined(nn.Module):
    """Two parallel hidden layers, which the last layer reads as a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 3), nn.Linear(6, 4)
        self.last = nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(torch.cat([self.left(x), self.right(x)], 1)))
        return out


class Gates(nn.Module):
    """The gates of an LSTM are a concatenation of one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(2, 8, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.rnn(x.view(-1, 3, 2))[0][:, -1])
        return out


class Pixels(nn.Module):
    """A flatten makes channels x height x width; batch norm has running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.last = nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.conv(x.view(-1, 1, 2, 3))))
        out: Tensor = self.last(h.flatten(1))
        return out


def six(count: int = 24) -> Dataset:
    """Make six numbers and three labels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return dataset(*[(x, torch.arange(count) % 3)] * 2)
