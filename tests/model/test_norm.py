"""Static batch norm, the scaler, and pooled statistics of evaluation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.score import cached_module
from submodel.algorithm.types import Assignment, Setup
from submodel.core.errors import ConfigError
from submodel.data import Dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.model.axes import trace
from submodel.model.build import build_module, tensors_of
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE, UnitCut
from submodel.model.norm import (
    PairwiseMaxPool2d,
    Scaler,
    StaticBatchNorm,
    calibrate,
    has_scaler,
    moments,
    quicken_pools,
    set_rate,
)
from submodel.model.zoo import make_model
from submodel.model.zoo.images import cnn
from tests.support.common import tiny_images
from tests.support.engines import (
    EXACT_TOLERANCE,
    assert_equal_updates,
    doubled,
    own_setup,
    setup_of,
)


class Wrapped(nn.Module):
    """A chain that is not recognised as one, so all of it runs."""

    def __init__(self, chain: nn.Module) -> None:
        super().__init__()
        self.chain = chain

    def forward(self, x: Tensor) -> Any:
        """Run the chain."""
        return self.chain(x)


class Counting(nn.Linear):
    """A layer that counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Count the call and run the layer."""
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
    with cached_module(net, tensors_of(net), WHOLE, "cpu") as cached:
        assert type(cached.get_submodule("1")) is PairwiseMaxPool2d
        image = torch.randn(2, 1, 6, 6)
        with torch.no_grad():
            assert torch.equal(cached(image), net(image))
    assert type(net[1]) is nn.MaxPool2d


CAPACITIES = [1, 0.5, 0.25]


def scaled_setup(images: Dataset | None = None, **sections: Any) -> Setup:
    sections = {"clients": {"capacities": CAPACITIES}, **sections}
    return setup_of(
        "preresnet18", images or doubled(tiny_images()), model={"scaler": True}, **sections
    )


class PlainScaled(nn.Module):
    """The pre-activation ResNet18 in functions only, which divides after every convolution."""

    def __init__(self, net: nn.Module, rate: float) -> None:
        super().__init__()
        self.weights, self.rate = dict(net.named_parameters()), rate

    def norm(self, path: str, x: Tensor) -> Tensor:
        w, b = self.weights[f"{path}.weight"], self.weights[f"{path}.bias"]
        mean = x.mean((0, 2, 3), keepdim=True)
        variance = x.var((0, 2, 3), correction=0, keepdim=True)
        own = (x - mean) / (variance + 1e-5).sqrt()
        return (own * w.view(1, -1, 1, 1) + b.view(1, -1, 1, 1)).relu()

    def conv(self, path: str, x: Tensor, stride: int = 1) -> Tensor:
        w = self.weights[f"{path}.weight"]
        return functional.conv2d(x, w, stride=stride, padding=w.shape[-1] // 2) / self.rate

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv("stem", x)
        for s in range(4):
            for b in range(2):
                path, stride = f"stages.{s}.{b}", 2 if s and not b else 1
                active = self.norm(f"{path}.norm1", x)
                if f"{path}.shortcut.weight" in self.weights:
                    x = self.conv(f"{path}.shortcut", active, stride)
                inner = self.norm(f"{path}.norm2", self.conv(f"{path}.conv1", active, stride))
                x = self.conv(f"{path}.conv2", inner) + x
        pooled = self.norm("norm", x).mean((2, 3))
        weight, bias = (self.weights[f"classifier.{n}"] for n in ("weight", "bias"))
        return functional.linear(pooled, weight, bias)


@pytest.mark.parametrize("rate", [1.0, 0.5, 1 / 16])
def test_the_net_divides_after_every_convolution_while_training_and_only_then(rate: float) -> None:
    torch.manual_seed(0)
    net = make_model("preresnet18", (1, 8, 8), 10, width=4, scaler=True).double()
    plain = make_model("preresnet18", (1, 8, 8), 10, width=4).double()
    plain.load_state_dict(net.state_dict())  # the same names with and without scalers
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    set_rate(net, rate)
    torch.testing.assert_close(net(x), PlainScaled(net, rate)(x), rtol=1e-9, atol=1e-9)
    for module in (net, plain):
        calibrate(module, [x])
    assert torch.equal(net(x), plain(x))


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
@pytest.mark.parametrize("absent", ["keep", "leave_out"])
def test_batched_is_serial_with_scalers(granularity: str, absent: str) -> None:
    """At coordinate granularity all capacities have one shape, but must not share a stack."""
    setup = scaled_setup(scheme={"granularity": granularity}, local={"absent_labels": absent})
    assert BatchedEngine(setup)._wide is not None
    assert_equal_updates(setup, EXACT_TOLERANCE)


class Tokens(nn.Module):
    """A net without a wide form, and without a norm that would undo its scaler."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.scaler = nn.Linear(8, 6), nn.LayerNorm(8), Scaler()
        self.last = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.scaler(self.inner(self.norm(x.squeeze(1))))
        return self.last(functional.gelu(x).mean(1))


def test_scalers_work_under_vmap_and_do_something_where_no_norm_follows() -> None:
    setup = own_setup(Tokens(), clients={"capacities": CAPACITIES})
    assert BatchedEngine(setup)._wide is None
    assert_equal_updates(setup)
    half = build_module(setup.module, WHOLE).train()
    before = half(setup.clients.dataset.example)
    set_rate(half, 0.5)
    assert not torch.allclose(half(setup.clients.dataset.example), before)
    assert setup.module.scaler.rate == 1  # type: ignore[union-attr]


@pytest.mark.slow
def test_axes_builds_and_costs_are_those_of_the_net_without_scalers() -> None:
    x = torch.randn(2, 1, 8, 8)
    nets = [make_model("preresnet18", (1, 8, 8), 10, 4, scaler=scaler) for scaler in (False, True)]
    assert [has_scaler(net) for net in nets] == [False, True]
    plain, scaled = (trace(net, x, classes=True) for net in nets)
    assert plain.layouts == scaled.layouts
    cut = cut_of(scaled_setup(), Assignment(0, 0, 0.25))
    assert isinstance(cut, UnitCut)
    small = [build_module(net, replace(cut, axes=scaled)) for net in nets]
    assert tensors_of(small[0]).keys() == tensors_of(small[1]).keys()
    costs = [CostModel(net, x).of(replace(cut, axes=scaled)) for net in nets]
    assert costs[0] == costs[1]


def trained(rate: float, eps: float) -> tuple[Tensor, Tensor]:
    """Return the logits and gradients of an untrained net on a batch of ten."""
    torch.manual_seed(0)
    net = make_model("preresnet18", (3, 32, 32), 10, width=8, scaler=True).double()
    x = torch.randn(10, 3, 32, 32, dtype=torch.float64)
    for layer in net.modules():
        if isinstance(layer, StaticBatchNorm):
            layer.eps = eps
    set_rate(net, rate)
    logits = net(x)
    loss = functional.cross_entropy(logits, torch.arange(10))
    found = torch.autograd.grad(loss, list(net.parameters()))
    return logits.detach(), torch.cat([g.flatten() for g in found])


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 0.25, 1 / 16])
def test_batch_statistics_take_the_scaler_out_again_but_for_eps(rate: float) -> None:
    """Without eps the scaler cancels bit for bit, as these divisions are exact.

    With eps the logits move by 4 eps. So does the gradient, except for jumps where a ReLU switches:
    at eps = 1e-5 the relative gap was 0.01 to 0.023 for widths of 32 to 4.
    """
    for eps, of_logits, of_gradient in ((0.0, 0.0, 0.0), (1e-9, 1e-8, 1e-7), (1e-5, 1e-4, 0.05)):
        (logits, gradient), (scaled, other) = trained(1.0, eps), trained(rate, eps)
        assert float((scaled - logits).abs().max()) <= of_logits
        gap = float((other - gradient).norm() / gradient.norm())
        assert gap <= of_gradient
        assert (gap > 0) == (eps > 0)


def test_nets_without_the_option_refuse_it() -> None:
    with pytest.raises(ConfigError, match=r"^model\.scaler: 'mlp' .* preresnet18"):
        setup_of("mlp", model={"scaler": True})


def test_the_cnn_divides_what_enters_its_linear_layers_while_it_trains() -> None:
    torch.manual_seed(0)
    net, plain = (cnn((1, 8, 8), 3, 2, scaler=scaler) for scaler in (True, False))
    for one, other in zip(plain.parameters(), net.parameters(), strict=True):
        one.data = other.data.clone()
    x = torch.randn(5, 1, 8, 8)
    set_rate(net, 0.5)
    hidden, out = (layer for layer in plain if isinstance(layer, nn.Linear))
    flat = plain[:9](x)  # convolutions, norms and pools cancel any scale
    expected = functional.relu(hidden(2 * flat))
    torch.testing.assert_close(net(x), out(2 * expected))
    torch.testing.assert_close(net.eval()[9:](flat), plain[9:](flat))
