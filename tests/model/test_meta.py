"""Shapes found without PyTorch's compiler are those that PyTorch computes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from submodel.model.meta import Shapes

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
