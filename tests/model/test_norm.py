"""Statistics of static batch norm are taken from the layers that it takes to know them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from submodel.model.norm import StaticBatchNorm, moments


class Wrapped(nn.Module):
    """A chain that is not known to be one, so all of it runs."""

    def __init__(self, chain: nn.Module) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, x: Tensor) -> Any:
        """As the chain."""
        return self.chain(x)


class Counting(nn.Linear):
    """Knows how often it ran."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """As ever."""
        self.calls += 1
        return super().forward(x)


def _chain() -> tuple[nn.Sequential, Counting, list[Tensor]]:
    torch.manual_seed(0)
    head = Counting(4, 2)
    inner = nn.Sequential(nn.Linear(4, 4), StaticBatchNorm(4), nn.ReLU())
    chain = nn.Sequential(nn.Linear(3, 4), StaticBatchNorm(4), nn.ReLU(), inner, head)
    return chain, head, list(torch.randn(5, 6, 3))


def test_the_layers_after_the_last_norm_do_not_run_and_change_no_bit() -> None:
    chain, head, batches = _chain()
    rows = moments(chain, batches)
    assert head.calls == 0
    assert rows.shape == (5, 2 * (1 + 4 + 4))
    assert torch.equal(rows, moments(Wrapped(chain), batches))
    assert head.calls == 5


def test_a_chain_with_hooks_runs_whole() -> None:
    chain, head, batches = _chain()
    chain.register_forward_pre_hook(lambda _, inputs: (2 * inputs[0],))
    assert torch.equal(moments(chain, batches), moments(Wrapped(chain), batches))
    assert head.calls == 10
