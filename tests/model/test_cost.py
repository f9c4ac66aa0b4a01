"""Costs of weights, and shapes found without PyTorch's compiler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from submodel.model import cost
from submodel.model.axes import trace
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE
from submodel.model.meta import Shapes
from submodel.model.zoo import make_model
from submodel.schemes import Draw, Random
from submodel.schemes.draw import draw_units


def shared(module: nn.Module, costs: CostModel) -> float:
    """Return the cost of weights of two or more dimensions."""
    flops = costs.flops_per_weight()
    return sum(flops[n] * p.numel() for n, p in module.named_parameters() if p.dim() > 1)


@pytest.mark.slow
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
    # at five positions: all are counted at the layer's own parameter
    attention = 2 * 5 * (108 + 36) + 2 * (2 * 5 * 5 * 6)
    assert flops["attention.in_proj_weight"] * 108 == pytest.approx(attention)
    uncounted = sum(2 * p.numel() for p in (module.place, module.words.weight)) + 2 * 36
    assert shared(module, costs) == pytest.approx(costs.forward_flops(WHOLE) + uncounted)


class Joined(nn.Module):
    """Two concatenated axes: the last layer computes a sum of products."""

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
    monkeypatch.setattr(CostModel, "build", None)  # nothing is built if there is a formula
    new = draw_units(Random(), axes, 0.75, Draw(0, 1, 0))
    if model == "joined":
        with pytest.raises(TypeError):
            costs.forward_flops(new)
    else:
        assert costs.forward_flops(new) > 0


IMAGES = (2, 3, 8, 9)
OPERATORS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "convolution": (nn.Conv2d(3, 4, 3), IMAGES),
    "strided": (nn.Conv2d(3, 4, (3, 2), stride=(2, 3), padding=(1, 0)), IMAGES),
    "spread, in groups": (nn.Conv2d(4, 6, 3, dilation=2, padding="same", groups=2), (1, 4, 8, 8)),
    "one dimension": (nn.Conv1d(3, 4, 5, bias=False), (2, 3, 11)),
    "three dimensions": (nn.Conv3d(1, 2, 2, stride=2), (2, 1, 4, 5, 6)),
    "one image": (nn.Conv2d(3, 4, 3), IMAGES[1:]),
    "no images": (nn.Conv2d(3, 4, 3), (0, 3, 8, 8)),
    "transposed": (nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), IMAGES),
    "pool": (nn.MaxPool2d(2), IMAGES),
    "pool, strided": (nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0)), IMAGES),
    "pool, spread": (nn.MaxPool2d(2, dilation=3), IMAGES),
    "pool, rounded up": (nn.MaxPool2d(2, ceil_mode=True), IMAGES),
    "pool of one image": (nn.MaxPool2d(2), IMAGES[1:]),
    "where the largest are": (lambda x: nn.MaxPool2d(2, return_indices=True)(x)[1], IMAGES),
    "mean": (lambda x: x.mean((2, -1)), IMAGES),
    "mean that keeps dimensions": (lambda x: x.mean(1, keepdim=True), IMAGES),
    "mean of everything": (lambda x: x.mean(), IMAGES),
    "mean in double precision": (lambda x: x.mean(0, dtype=torch.float64), IMAGES),
    "sum": (lambda x: x + x, IMAGES),
    "sum of two sizes": (lambda x: x + x[:, :1], IMAGES),
    "sum with a number": (lambda x: x + 1, IMAGES),
    "sum of two kinds": (lambda x: x + x.double(), IMAGES),
    "sum of views": (lambda x: x.mT + x.mT, IMAGES),
    "sum with one per column": (lambda x: x + x[0, 0, 0].contiguous(), IMAGES),
    "a smaller one first": (lambda x: x[0, 0, 0].contiguous() + x, IMAGES),
    "sum of what is repeated both ways": (lambda x: x[:1] + x[:, :1], IMAGES),
    "product with a number": (lambda x: x * 0.5, IMAGES),
    "product of a view and a number": (lambda x: x.permute(2, 0, 3, 1)[1:] * 2.0, IMAGES),
    "part of a view": (lambda x: torch.mul(x.mT[:, 1], 0.25), IMAGES),
    "whole numbers": (lambda x: x.long() * 2, IMAGES),
    "embedding": (lambda x: nn.functional.embedding(x.long()[:, 0, 0], x[0, 0]), IMAGES),
    "embedding with padding": (
        lambda x: nn.functional.embedding(x.long()[:, 0, 0], x[0, 0], padding_idx=1),
        IMAGES,
    ),
    "product": (lambda x: x[0, 0] @ x[0, 1].mT, IMAGES),
    "products": (lambda x: torch.bmm(x[0], x[1].mT), IMAGES),
    "layer norm": (nn.LayerNorm(9), IMAGES),
    "layer norm of images": (nn.LayerNorm(IMAGES[1:], elementwise_affine=False), IMAGES),
    "softmax": (lambda x: x.softmax(-1), IMAGES),
    "attention": (
        lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.5),
        IMAGES,
    ),
    "activation of a view": (lambda x: x.mT.relu(), IMAGES),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_shapes_are_those_that_are_computed(name: str) -> None:
    operator, shape = OPERATORS[name]
    expected = operator(torch.zeros(shape))
    if isinstance(operator, nn.Module):
        operator = operator.to("meta")
    with Shapes():
        result = operator(torch.empty(shape, device="meta"))
    assert (result.shape, result.stride()) == (expected.shape, expected.stride())
    assert (result.dtype, result.device.type) == (expected.dtype, "meta")


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
    "other channels": (nn.Conv2d(5, 4, 3, device="meta"), torch.empty(IMAGES)),
    "too small": (nn.Conv2d(3, 4, 3, device="meta"), torch.empty(2, 3, 2, 2)),
    "a pool that is too large": (nn.MaxPool2d(9), torch.empty(IMAGES)),
    "a pool with too wide a border": (nn.MaxPool2d(2, padding=2), torch.empty(IMAGES)),
    "sizes that do not fit": (lambda x: x + x[:, :, :3].contiguous(), torch.empty(IMAGES)),
    "layer norm of other sizes": (nn.LayerNorm(8, device="meta"), torch.empty(IMAGES)),
    "a product of other sizes": (lambda x: x[0] @ x[0], torch.empty(IMAGES)),
    "triangle of a row": (lambda x: x.tril(), torch.empty(3)),
    "mean of whole numbers": (lambda x: x.mean(1), torch.empty(2, 3, dtype=torch.int64)),
    "mean of a dimension twice": (lambda x: x.mean((1, -1)), torch.empty(2, 3)),
    "mean of a dimension that is not there": (lambda x: x.mean(3), torch.empty(2, 3)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_left_to_pytorch_to_refuse(name: str) -> None:
    operator, x = REFUSED[name]
    with Shapes(), pytest.raises((RuntimeError, IndexError)):
        operator(x.to("meta"))


@pytest.mark.slow
def test_the_costs_of_our_models_are_counted_without_loading_the_compiler() -> None:
    code = """
import sys, torch
from submodel.model.budget import activation_bytes
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE
from submodel.model.meta import Shapes
from submodel.model.zoo import make_model
from submodel.model.zoo.gpt import Decoder
for name in ("mlp", "cnn", "preresnet18"):
    costs = CostModel(make_model(name, (1, 8, 8), 10, 4), torch.empty(2, 1, 8, 8))
    costs.of(WHOLE), costs.flops_per_weight()
costs = CostModel(Decoder(8, 29, 16, 1, 2), torch.zeros(2, 8, dtype=torch.long))
costs.of(WHOLE), costs.flops_per_weight()
inputs = torch.zeros(2, 8, dtype=torch.long, device="meta")
activation_bytes(costs.build(WHOLE), inputs)
with torch.device("meta"), Shapes():
    torch.nn.init.trunc_normal_(torch.nn.Embedding(3, 4).weight)
print([name for name in ("sympy", "torch._dynamo") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=240
    )
    assert done.stdout == "[]\n"
