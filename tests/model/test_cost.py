"""What one weight costs: shares of what its layer computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from submodel.model import cost
from submodel.model.axes import trace
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE
from submodel.model.zoo import make_model
from submodel.schemes import Draw, Random
from submodel.schemes.draw import draw_units


def shared(module: nn.Module, costs: CostModel) -> float:
    """What the weights of two or more dimensions cost together."""
    flops = costs.flops_per_weight()
    return sum(flops[n] * p.numel() for n, p in module.named_parameters() if p.dim() > 1)


@pytest.mark.parametrize("model", ["mlp", "cnn", "preresnet18", "preresnet34"])
def test_weights_share_the_forward_pass_of_layers(model: str) -> None:
    module = make_model(model, (1, 8, 8), 10, 4)
    costs = CostModel(module, torch.empty(2, 1, 8, 8))
    assert shared(module, costs) == pytest.approx(costs.forward_flops(WHOLE), rel=1e-12)
    assert costs.flops_per_weight().keys() == dict(module.named_parameters()).keys()


def test_a_filter_costs_two_operations_in_every_place() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4), nn.Flatten(),
                        nn.Linear(64, 5))  # fmt: skip
    flops = CostModel(net, torch.empty(6, 3, 8, 8)).flops_per_weight()
    assert flops == {
        "0.weight": 2 * 4 * 4, "0.bias": 2, "1.weight": 2, "1.bias": 2, "3.weight": 2, "3.bias": 2
    }  # fmt: skip


def test_a_layer_that_is_used_twice_costs_twice() -> None:
    layer = nn.Linear(4, 4)
    flops = CostModel(nn.Sequential(layer, layer), torch.empty(1, 4)).flops_per_weight()
    assert flops["0.weight"] == 4


class Reader(nn.Module):
    """A parameter of its own, an embedding, a recurrent net, attention, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros(1, 5, 8))
        self.words = nn.Embedding(7, 8)
        self.cells = nn.LSTM(8, 6, num_layers=2, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        h, _ = self.cells(self.words(x) + self.place)
        h, _ = self.attention(h, h, h, need_weights=False)
        return self.head(h.mean(1))


def test_recurrent_nets_and_attention_give_shares_too() -> None:
    module = Reader()
    costs = CostModel(module, torch.zeros(2, 5, dtype=torch.long))
    flops = costs.flops_per_weight()
    assert {flops[n] for n in flops if n.startswith("cells.weight")} == {2 * 5}  # five steps
    assert flops["head.weight"] == flops["words.weight"] == flops["place"] == 2
    # the layer's products (108 weights), those of the output (36) and of queries, keys and values,
    # in five places: all are counted at the one parameter that is the layer's own
    attention = 2 * 5 * (108 + 36) + 2 * (2 * 5 * 5 * 6)
    assert flops["attention.in_proj_weight"] * 108 == pytest.approx(attention)
    uncounted = sum(2 * p.numel() for p in (module.place, module.words.weight)) + 2 * 36
    assert shared(module, costs) == pytest.approx(costs.forward_flops(WHOLE) + uncounted)


class Joined(nn.Module):
    """Two axes side by side: what the last layer computes is a sum of products."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(6, 12), nn.Linear(6, 16), nn.Linear(28, 5)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.cat([self.one(x), self.other(x)], 1).relu())


@pytest.mark.parametrize("model", ["mlp", "cnn", "joined"])
def test_the_operations_of_many_shapes_are_those_of_each(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Joined() if model == "joined" else make_model(model, (1, 8, 8), 10, 16)
    example = torch.zeros(2, 6) if model == "joined" else torch.zeros(2, 1, 8, 8)
    axes = trace(module, example)
    costs = CostModel(module, example)
    cuts = [draw_units(Random(), axes, 0.5, Draw(0, 0, client)) for client in range(12)]
    counted = [costs.forward_flops(cut) for cut in cuts]
    assert len({cut.shape_key for cut in cuts}) > 6
    monkeypatch.setattr(cost, "_SHAPES", 100)  # one by one
    apart = CostModel(module, example)
    assert counted == [apart.forward_flops(cut) for cut in cuts]
    monkeypatch.setattr(CostModel, "build", None)  # nothing is built where there is a formula
    new = draw_units(Random(), axes, 0.75, Draw(0, 1, 0))
    if model == "joined":
        with pytest.raises(TypeError):
            costs.forward_flops(new)
    else:
        assert costs.forward_flops(new) > 0
