"""Pooling for evaluation gives what PyTorch's own gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from submodel.algorithm.score import lent_module
from submodel.model.build import tensors_of
from submodel.model.cut import WHOLE
from submodel.model.norm import PairwiseMaxPool2d, quicken_pools

_LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("layout", _LAYOUTS, ids=["contiguous", "channels last"])
@pytest.mark.parametrize("size", [(2, 2), (8, 8), (7, 4), (5, 9)], ids=str)
def test_it_is_torchs_own_to_the_bit_and_lies_in_memory_alike(
    size: tuple[int, int], layout: torch.memory_format
) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(3, 5, *size, generator=generator).contiguous(memory_format=layout)
    image[0, 0, 0, 0], image[1, 1, 1, 1] = float("nan"), float("-inf")
    with torch.no_grad():
        ours, torchs = PairwiseMaxPool2d(2)(image), nn.MaxPool2d(2)(image)
    assert torch.equal(ours.nan_to_num(9.0), torchs.nan_to_num(9.0))
    assert torch.equal(ours.isnan(), torchs.isnan())
    assert ours.is_contiguous(memory_format=layout)


def test_gradients_are_torchs_own() -> None:
    image = torch.zeros(1, 1, 4, 4, requires_grad=True)  # every pixel is a maximum
    PairwiseMaxPool2d(2)(image).sum().backward()
    other = torch.zeros(1, 1, 4, 4, requires_grad=True)
    nn.MaxPool2d(2)(other).sum().backward()
    assert image.grad is not None
    assert other.grad is not None
    assert torch.equal(image.grad, other.grad)


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, stride=1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, return_indices=True),
        nn.AvgPool2d(2),
    ],
    ids=str,
)
def test_other_poolings_stay(pool: nn.Module) -> None:
    net = nn.Sequential(pool)
    quicken_pools(net)
    assert net[0] is pool


def test_a_pooling_that_somebody_watches_stays() -> None:
    seen: list[Tensor] = []
    net = nn.Sequential(nn.MaxPool2d(2))
    net[0].register_forward_hook(lambda _layer, _inputs, output: seen.append(output))
    quicken_pools(net)
    net(torch.ones(1, 1, 2, 2))
    assert len(seen) == 1


def test_evaluation_uses_it_and_the_model_that_trains_keeps_its_own() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d((2, 2)), nn.Flatten())
    with lent_module(net, tensors_of(net), WHOLE, "cpu") as lent:
        assert type(lent.get_submodule("1")) is PairwiseMaxPool2d
        image = torch.randn(2, 1, 6, 6)
        with torch.no_grad():
            assert torch.equal(lent(image), net(image))
    assert type(net[1]) is nn.MaxPool2d
