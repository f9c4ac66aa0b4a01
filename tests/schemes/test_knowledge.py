"""What schemes may know of the model: exact against counting weight by weight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from submodel.algorithm.dispatch import knowledge_of
from submodel.algorithm.rounds import initial_state
from submodel.model.axes import Axes, declare, trace
from submodel.model.axes.layout import Along, Concatenation, FixedPart
from submodel.model.cut import COORDINATES, UnitCut
from submodel.model.zoo import make_model
from submodel.schemes.draw import ModelKnowledge
from tests.model.axes.nets import IMAGE, VECTOR, Net
from tests.model.zoo.transformer import VisionTransformer
from tests.support.common import tiny_setup


def by_counting(axes: Axes, parameters: dict[str, Tensor], axis: str) -> list[float]:
    """Drop one unit after another: its weights are those that go with it."""
    size, means = axes.sizes[axis], []
    for unit in range(size):
        without = UnitCut(axes, {axis: np.delete(np.arange(size), unit)})
        lost = []
        for name, tensor in parameters.items():
            kept = torch.zeros_like(tensor)
            without.add(name, kept, 1.0)
            lost.append(tensor.detach()[kept == 0].abs().double())
        means.append(float(torch.cat(lost).mean()))
    return means


def residual() -> nn.Module:
    """A square between one axis and itself: w[i, i] goes with unit i along both dimensions."""
    return Net(
        lambda m, x: m.out((h := m.stem(x).relu()) + m.square(h)),
        stem=nn.Linear(6, 5), square=nn.Linear(5, 5), out=nn.Linear(5, 2),
    )  # fmt: skip


def outer() -> nn.Module:
    """A product of an axis with itself: position (i, j) goes with units i and j."""

    def forward(m: nn.Module, x: Tensor) -> Tensor:
        h = m.stem(x).relu()  # type: ignore[operator]
        out: Tensor = m.out((h[:, :, None] * h[:, None, :]).flatten(1))  # type: ignore[operator]
        return out

    return Net(forward, stem=nn.Linear(6, 4), out=nn.Linear(16, 2))


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "flatten": (lambda: make_model("cnn", (1, 8, 8), 4, 3), torch.randn(2, 1, 8, 8)),
    "residual streams": (lambda: make_model("preresnet18", (1, 8, 8), 4, 2), IMAGE[:, :1]),
    "fused qkv": (lambda: VisionTransformer(width=8, heads=2), IMAGE),
    "square": (residual, VECTOR),
    "outer product": (outer, VECTOR),
}


@pytest.mark.parametrize("name", NETS)
def test_magnitudes_are_the_mean_size_of_the_weights_that_go_with_a_unit(name: str) -> None:
    make, inputs = NETS[name]
    net = make()
    axes = trace(net, inputs)
    generator = torch.Generator().manual_seed(3)
    parameters = {n: torch.randn(p.shape, generator=generator) for n, p in net.named_parameters()}
    found = ModelKnowledge(axes, parameters, {})
    assert axes.sizes
    assert list(found.axes) == list(axes.cut_by_capacity)
    for axis in axes.sizes:
        expected = by_counting(axes, parameters, axis)
        # float64 sums in another order
        np.testing.assert_allclose(found.magnitudes(axis), expected, rtol=1e-12)
        assert found.pieces(axis) == [axes.sizes[axis]]
        assert not found.shapes(axis)


def test_a_concatenation_counts_only_the_parts_of_the_axis() -> None:
    weight = {"w": torch.tensor([[1.0, -2.0, 30.0, 40.0, -5.0]])}
    layout = Concatenation((Along("a", 2), FixedPart(2), Along("one", 1)))
    axes = Axes({"a": 2, "one": 1}, {"w": (FixedPart(1), layout)})
    found = ModelKnowledge(axes, weight, {})
    assert found.magnitudes("a").tolist() == [1.0, 2.0]
    assert found.magnitudes("one").tolist() == [5.0]  # an axis of one unit is not everything


def test_the_flat_vector_knows_every_weight_and_where_tensors_end() -> None:
    setup = tiny_setup("mlp", scheme={"name": "importance", "granularity": "coordinate"})
    state = initial_state(setup)
    found = knowledge_of(setup, state)
    flat = torch.cat([p.reshape(-1) for p in state.tensors.values()]).abs().double()
    assert list(found.axes) == [COORDINATES]
    assert found.magnitudes(COORDINATES).tolist() == flat.tolist()
    assert list(found.pieces(COORDINATES)) == [t.numel() for t in state.tensors.values()]
    assert list(found.shapes(COORDINATES)) == [t.shape for t in state.tensors.values()]


def test_tensors_without_the_axis_count_nothing() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    axes = declare(dict(net.named_parameters()), {"0.bias": ("hidden",)})
    values = {n: torch.full(p.shape, 7.0) for n, p in net.named_parameters()}
    values["0.bias"] = torch.tensor([-1.0, 2.0, -3.0])
    assert ModelKnowledge(axes, values, {}).magnitudes("hidden").tolist() == [1.0, 2.0, 3.0]
