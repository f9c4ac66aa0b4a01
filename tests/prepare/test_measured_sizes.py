"""Measurements before a run use the sizes that the run trains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from submodel.config import parse
from submodel.config.setup import prepare
from tests.support.nets import six


class TwiceAtSize(nn.Module):
    """Double the hidden units if there are a given number of the eight."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.a, self.b, self.by_size = nn.Linear(6, 8), nn.Linear(8, 3), {size: 2.0}

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.sigmoid(self.a(x))
        out: Tensor = self.b(hidden * self.by_size.get(len(hidden[0]), 1.0))
        return out


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "the share of a capacity": (3, {}),
    "a window": (3, {"scheme": {"name": "rolling", "windows": 8}}),
    "the least share of an axis": (5, {"axes": {"least": {"a": "5/8"}}}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sizes_that_are_trained_are_measured(case: str) -> None:
    size, sections = CASES[case]
    clients = {"count": 4, "per_round": 2, "capacities": [1, 0.375]}
    config = parse(
        {
            "clients": clients,
            "data": {"partition": "iid"},
            "local": {"absent_labels": "keep"},
            **sections,
        }
    )
    for trained in range(3, 6):
        axes = prepare(config, TwiceAtSize(trained).double(), six()).axes
        assert axes.measured == (0.375,)
        assert axes.exact is (trained != size)
