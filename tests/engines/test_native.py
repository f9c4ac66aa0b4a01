"""The native kernels: torch's numbers to 1e-5, client by client, in any stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from submodel import digits, train
from submodel.cli.application import command_line
from submodel.config import parse
from submodel.config.engine import choose_engine, make_engine
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.batched.forward import UnstackableError, WideForward
from submodel.engines.batched.stack import widen
from submodel.engines.native import forward as native
from submodel.engines.native import library
from submodel.engines.native.forward import NativeForward
from submodel.engines.native.library import BuildError, built_library, find_compiler
from submodel.engines.select import native_refusal
from submodel.model.norm import Scaler, StaticBatchNorm, set_rate
from submodel.model.zoo.images import cnn
from tests.support.common import tiny_images
from tests.support.engines import native_engine, setup_of, tasks_of, updates

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
TOLERANCE = 1e-5
"""Relative to the largest value of a tensor, for float32 sums of some thousand terms."""
CPU = torch.device("cpu")


class Sum(nn.Module):
    """Two branches, one of which another layer reads as well."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.branches
        y = first(x)
        out: Tensor = second(y) + y
        return torch.relu(out)


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def stack_of(net: nn.Module, clients: int) -> dict[str, Tensor]:
    """Make distinct tensors for every client; the factors of norms are near one."""
    generator = torch.Generator().manual_seed(1)

    def draw(p: Tensor) -> Tensor:
        return (p.dim() == 1) + 0.4 * torch.randn(p.shape, generator=generator)

    parts = {n: [draw(p) for _ in range(clients)] for n, p in net.named_parameters()}
    return {name: widen(part, CPU).requires_grad_() for name, part in parts.items()}


def results(
    forward: NativeForward | WideForward, wide: dict[str, Tensor], clients: int, x: Tensor
) -> list[Tensor]:
    """Return outputs and the gradients of all tensors."""
    out = forward(wide, clients, x)
    weights = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    gradients = torch.autograd.grad((out * weights).sum(), list(wide.values()))
    return [out.detach(), *gradients]


def assert_as_torch(net: nn.Module, image: Sequence[int], clients: int, batch: int) -> None:
    """Compare with double precision."""
    net.train()
    x = torch.randn(batch, clients, *image, generator=torch.Generator().manual_seed(batch))
    wide_forward = WideForward(net, x[:, 0])
    wide = stack_of(net, clients)
    actual = results(NativeForward(wide_forward), wide, clients, x)
    doubles = {n: t.detach().double().requires_grad_() for n, t in wide.items()}
    for mine, exact in zip(
        actual, results(wide_forward, doubles, clients, x.double()), strict=True
    ):
        assert mine.shape == exact.shape
        largest = exact.abs().max().clamp(min=1e-3)
        assert ((mine - exact).abs().max() / largest).item() < TOLERANCE


def ends(net: nn.Module, image: Sequence[int]) -> nn.Sequential:
    """Append a linear layer to a net."""
    size = net(torch.zeros(2, *image)).flatten(1).shape[1]
    return nn.Sequential(net, nn.Flatten(), nn.Linear(size, 3))


CONVOLUTIONS: dict[str, tuple[Any, ...]] = {  # inputs, outputs, filter, stride, padding, bias
    "3 x 3": (3, 5, 3, 1, 1, False),
    "one channel": (1, 1, 3, 1, 1, True),
    "many": (19, 18, 3, 1, 1, False),
    "strided": (4, 6, 3, 2, 1, False),
    "strided by three": (2, 3, 3, 3, 0, True),
    "point": (5, 9, 1, 1, 0, True),
    "strided point": (3, 8, 1, 2, 0, False),
    "without frame": (2, 4, 3, 1, 0, False),
    "wide frame": (2, 3, 3, 1, 2, False),
    "strided, no frame": (16, 4, 2, 2, 0, False),
    "large": (2, 2, 5, 2, 2, True),
    "flat": (3, 4, (1, 3), 1, 0, False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_those_of_torch(name: str) -> None:
    inputs, outputs, kernel, stride, padding, bias = CONVOLUTIONS[name]
    for number, batch in enumerate((1, 2, 3, 7, 8, 10, 15, 16, 17, 33)):
        image = (inputs, 7 + number % 3, 9 - number % 4)
        before = nn.Conv2d(inputs, inputs, 1)  # requires the gradient of the inputs
        layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=bias)
        net = ends(nn.Sequential(before, layer), image)
        assert_as_torch(net, image, clients=1 + number % 3, batch=batch)


TILED: tuple[tuple[Any, ...], ...] = (  # inputs, outputs, image, padding, batch
    (32, 64, (4, 4), 1, 10),
    (16, 19, (6, 8), 0, 3),
    (33, 17, (4, 6), 2, 1),
    (16, 16, (32, 24), 1, 17),  # several strips
    (16, 16, (10, 10), 0, 45),  # of another number of rows for the gradient
)


@pytest.mark.parametrize("case", TILED)
def test_convolutions_by_tiles_are_those_of_torch(case: tuple[Any, ...]) -> None:
    """3 x 3 filters of many channels on images of even size, alone and added to a sum."""
    inputs, outputs, image, padding, batch = case
    layer = nn.Conv2d(inputs, outputs, 3, padding=padding)
    net = ends(nn.Sequential(nn.Conv2d(2, inputs, 1), layer), (2, *image))
    assert_as_torch(net, (2, *image), clients=2, batch=batch)
    if padding == 1:
        both = Sum(nn.Conv2d(2, inputs, 1), nn.Conv2d(inputs, inputs, 3, padding=1, bias=False))
        assert_as_torch(ends(both, (2, *image)), (2, *image), clients=2, batch=batch)


LAYERS: dict[str, nn.Module] = {
    "norm": StaticBatchNorm(4),
    "norm and ReLU": nn.Sequential(StaticBatchNorm(4), nn.ReLU()),
    "ReLU": nn.ReLU(),
    "max pool": nn.MaxPool2d(2),
    "overlapping max pool": nn.MaxPool2d(3, 2),
    "mean pool": nn.AvgPool2d(2),
    "adaptive": nn.AdaptiveAvgPool2d(1),
    "mean": Mean(),
    "identity": nn.Identity(),
    "scaler": nn.Sequential(Scaler(), nn.ReLU(), Scaler()),
    "sum": Sum(nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)),
    "sum of norms": Sum(StaticBatchNorm(4), nn.Sequential(nn.ReLU(), StaticBatchNorm(4))),
    "convolutions in a row": nn.Sequential(nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(3, 4, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("framed", [False, True])
def test_other_layers_are_those_of_torch(name: str, framed: bool) -> None:
    """With a frame: a convolution with padding follows, so values have frames of zeros."""
    for batch in (2, 5, 10, 16, 33):
        image = (2, 8, 6)
        layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, padding=1, bias=False), LAYERS[name]]
        if framed and name != "mean":
            layers.append(nn.Conv2d(4, 2, 3, padding=1))
        net = ends(nn.Sequential(*layers), image)
        set_rate(net, 0.25)
        assert_as_torch(net, image, clients=2, batch=batch)


def test_a_client_is_computed_alike_in_every_stack() -> None:
    """Neither stacks nor processes change a bit."""
    setup = setup_of("cnn", tiny_images(108), local={"batch_size": 10})
    together = updates(native_engine(setup, "always"), setup)
    engine = native_engine(setup)
    for task in tasks_of(setup):
        (alone,) = engine.run([task])
        torch.testing.assert_close(
            together[task.assignment.client].tensors, alone.tensors, rtol=0, atol=0
        )


@pytest.mark.parametrize("model", ["cnn", "preresnet18"])
@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_updates_are_those_of_torch(model: str, granularity: str) -> None:
    sections: dict[str, Any] = {
        "scheme": {"granularity": granularity},
        "data": {"partition": "iid"},
    }
    setup = setup_of(model, tiny_images(108), local={"batch_size": 10}, **sections)
    expected = updates(BatchedEngine(setup), setup)
    for client, update in updates(native_engine(setup), setup).items():
        assert update.loss == pytest.approx(expected[client].loss, rel=1e-4)
        torch.testing.assert_close(update.tensors, expected[client].tensors, rtol=1e-3, atol=1e-4)


def test_what_is_not_finite_stays_with_its_client() -> None:
    net = ends(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), StaticBatchNorm(2)), (1, 4, 4)).train()
    wide = stack_of(net, 3)
    x = torch.randn(3, 3, 1, 4, 4)
    forward = NativeForward(WideForward(net, x[:, 0]))
    expected = results(forward, wide, 3, x)
    x[:, 1] = float("nan")
    actual = results(forward, wide, 3, x)
    assert not torch.isfinite(actual[0][:, 1]).any()
    for before, after in zip(expected, actual, strict=True):
        first, second = (t.transpose(0, 1) if t.dim() == 3 else t for t in (before, after))
        for client in (0, 2):
            assert torch.equal(first.chunk(3)[client], second.chunk(3)[client])


def test_large_activations_are_computed_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    net = ends(nn.Conv2d(1, 2, 3), (1, 6, 6)).train()
    x, wide = torch.randn(2, 1, 1, 6, 6), stack_of(net, 1)
    forward = WideForward(net, x[:, 0])
    monkeypatch.setattr(native, "LARGEST_BYTES", 0)
    assert torch.equal(NativeForward(forward)(wide, 1, x), forward(wide, 1, x))


def test_gradients_after_another_forward_pass_are_refused() -> None:
    net = ends(nn.Conv2d(1, 2, 3), (1, 6, 6)).train()
    x, wide = torch.randn(2, 1, 1, 6, 6), stack_of(net, 1)
    forward = NativeForward(WideForward(net, x[:, 0]))
    out = forward(wide, 1, x)
    forward(wide, 1, x)
    with pytest.raises(RuntimeError, match="forward pass"):
        torch.autograd.grad(out.sum(), list(wide.values()))


@pytest.mark.parametrize(
    "layer",
    [
        nn.GELU(),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, (3, 3), (1, 2)),
        nn.MaxPool2d(3, padding=1),
        nn.BatchNorm2d(4),
    ],
)
def test_what_has_no_kernel_is_refused_by_name(layer: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 1), layer, nn.Flatten())
    with pytest.raises(UnstackableError):
        NativeForward(WideForward(net, torch.randn(2, 2, 8, 8)))


LONG: dict[str, Any] = {
    "model": {"name": "cnn", "width": 8},
    "clients": {"count": 100, "per_round": 100},
    "train": {"rounds": 100_000},
    "engine": {"name": "local"},
}


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CC", "no-such-compiler")
    for function in (built_library, library.load_library):
        function.cache_clear()
    yield
    for function in (built_library, library.load_library):
        function.cache_clear()


def kernels_of(sections: dict[str, Any], has_begun: bool = False) -> str:
    config = parse(sections)
    return str(choose_engine(config, prepare(config), has_begun).engine.kernels)


def test_long_runs_choose_native_kernels_and_short_ones_do_not() -> None:
    assert kernels_of(LONG) == "native"
    assert kernels_of({**LONG, "train": {"rounds": 2}}) == "torch"
    assert kernels_of({**LONG, "engine": {"name": "local", "batching": "never"}}) == "torch"
    assert kernels_of({**LONG, "model": {"name": "mlp"}}) == "torch"
    assert kernels_of(LONG, has_begun=True) == "torch"
    assert kernels_of({**LONG, "engine": {"kernels": "native"}}, has_begun=True) == "native"


@pytest.mark.usefixtures("_no_compiler")
def test_without_a_compiler_torch_computes_or_the_reason_is_said() -> None:
    assert kernels_of(LONG) == "torch"
    config = parse({**LONG, "engine": {"name": "local", "kernels": "native"}})
    with pytest.raises(ConfigError, match=r"^engine\.kernels: 'native' .*C compiler"):
        make_engine(config, prepare(config))


@pytest.mark.usefixtures("_no_compiler")
def test_a_run_that_cannot_be_computed_leaves_nothing_behind(tmp_path: Path) -> None:
    settings = ["--set", "engine.kernels=native", "--out", str(tmp_path / "run")]
    outcome = CliRunner().invoke(command_line, ["train", *settings])
    assert isinstance(outcome.exception, ConfigError)
    assert "C compiler" in str(outcome.exception)
    assert not outcome.output
    sections = {"engine": {"kernels": "native"}}
    with pytest.raises(ConfigError, match="C compiler"):
        train(cnn((1, 8, 8), 10, 4), digits(), sections, out=tmp_path / "run")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"model": {"name": "mlp"}}, "convolutions"),
        ({"local": {"precision": "bfloat16"}}, "float32"),
        ({"scheme": {"name": "ordered"}}, "step rule"),
        ({"engine": {"kernels": "native", "threads": 2}}, "one thread"),
        ({"engine": {"kernels": "native", "batching": "never"}}, "stacks"),
    ],
)
def test_native_kernels_are_refused_where_they_would_mean_nothing(
    sections: dict[str, Any], reason: str
) -> None:
    config = parse(
        {"model": {"name": "cnn", "width": 8}, "engine": {"kernels": "native"}} | sections
    )
    with pytest.raises(ConfigError, match=rf"^engine\.kernels: .*{reason}"):
        make_engine(config, prepare(config))


def test_a_double_model_is_not_for_these_kernels() -> None:
    setup = setup_of("cnn")
    setup.module.double()
    assert "float32" in str(native_refusal(setup, CPU))
    assert native_refusal(replace(setup_of("cnn")), CPU) is None


def test_a_forecast_whose_model_has_no_values_is_for_these_kernels() -> None:
    setup = setup_of("cnn")
    assert native_refusal(replace(setup, module=setup.module.to("meta")), CPU) is None


def test_what_a_compiler_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\n[ $1 = --version ] || { echo broken >&2; exit 1; }\n", "utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(BuildError, match="kernels: broken"):
        library.built_library.__wrapped__()
    assert not list((tmp_path / "cache").rglob("*.so"))
