"""Operators that cut a dimension into parts: equal parts stay equal, whatever units are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.model.zoo.battery import battery
from tests.model.zoo.net import Entry

PARTS: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {
    "chunk": lambda x: x.chunk(2, -1),
    "unsafe_chunk": lambda x: torch.unsafe_chunk(x, 2, 1),
    "tensor_split": lambda x: x.tensor_split(2, -1),
    "tensor_split at": lambda x: torch.tensor_split(x, (x.shape[1] // 2,), dim=1),
    "tensor_split written out": lambda x: x.tensor_split((6,), 1),
    "hsplit": lambda x: x.hsplit(2),
    "hsplit at": lambda x: torch.hsplit(x, [x.shape[1] // 2]),
    "vsplit": lambda x: [part.t() for part in x.t().vsplit(2)],
    "dsplit": lambda x: [part[0] for part in torch.dsplit(x[None], 2)],
    "split": lambda x: x.split(x.shape[1] // 2, 1),  # type: ignore[no-untyped-call]
    "unbind": lambda x: x.view(len(x), 2, -1).unbind(1),
}


class Parts(nn.Module):
    """Reads the first part alone, so that nothing else makes the parts alike."""

    def __init__(self, parts: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        self.first, self.last, self.parts = nn.Linear(5, 12), nn.Linear(6, 3), parts

    def forward(self, x: Tensor) -> Any:
        one, _ = self.parts(torch.relu(self.first(x)))
        return self.last(one)


@pytest.mark.parametrize("kind", PARTS)
def test_equal_parts_stay_equal(kind: str) -> None:
    measured = battery(Entry(kind, lambda: (Parts(PARTS[kind]), (torch.randn(4, 5),))))
    assert measured.claimed
    assert measured.gap < 1e-12
