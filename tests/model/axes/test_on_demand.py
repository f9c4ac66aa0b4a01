"""Trial values of a large model are made when they are read, and it computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from submodel.model.axes import keep, trace
from submodel.model.axes.forward import isolate
from submodel.model.axes.verify import Example, NotOnDemandError, OnDemand, distance


class Tied(nn.Module):
    """One tensor under two names, a buffer that is counted up, and weights read as a product."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.ones(6))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.count += 1
        return self.second(torch.relu(self.first(x))) * (self.scale.data + self.count)


class Clipping(nn.Linear):
    """Writes to its own weights, as some models clip theirs."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


NETS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "clipping": lambda: Clipping(6, 3),
    "attention": lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True),
    "recurrent": lambda: nn.Sequential(nn.LSTM(6, 4, batch_first=True)),
}


@pytest.mark.parametrize("name", NETS)
def test_large_models_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = NETS[name](), torch.randn(2, 5, 6)
    before = [p.clone() for p in net.parameters()]
    expected = Example(net, x).plain.before
    monkeypatch.setattr(keep, "LARGE_MODEL", 0)
    example = Example(net, x)
    assert distance(expected, example.plain.before) < 1e-6
    assert {result.dtype for result in example.double.before} == {torch.float64}
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_axes_are_those_of_a_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Linear(16, 8), nn.Linear(8, 2))
    expected = trace(net, torch.ones(2, 4))
    monkeypatch.setattr(keep, "LARGE_MODEL", 0)
    assert trace(net, torch.ones(2, 4)) == expected


def test_what_cannot_be_done_on_demand_says_so() -> None:
    net = Clipping(6, 3)
    weights = {n: torch.ones_like(p) for n, p in net.named_parameters()}
    with isolate(net, ours=True), OnDemand(dict(net.named_parameters()), weights.__getitem__):
        with pytest.raises(NotOnDemandError, match="writes to a parameter"):
            net(torch.ones(1, 6))
        assert torch.equal(net.bias + 1, torch.full((3,), 2.0))
    assert net.weight.stride() == (6, 1)
