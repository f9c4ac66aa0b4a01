"""Modules of special kinds, and forwards that catch errors: cut correctly, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm
from torch.nn.utils.parametrize import register_parametrization

import submodel
from submodel.core.errors import ConfigError, SubmodelError
from submodel.engines.single_examples import refusal
from submodel.model.axes import declare, trace
from submodel.model.axes.layout import Along, FixedPart
from submodel.model.build import build_module
from submodel.model.build.checks import OutputCheck
from submodel.model.cost import count_flops
from submodel.model.cut import WHOLE, UnitCut
from tests.model.nets import Entry, Net, cut_by
from tests.model.zoo.battery import battery
from tests.support.axes import axes_of

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def with_middle(change: Callable[[nn.Linear], Any]) -> nn.Sequential:
    """Change the middle layer of the net in place, or replace it by a returned one."""
    made = net()
    middle = made[2]
    assert isinstance(middle, nn.Linear)
    changed = change(middle)
    made[2] = middle if changed is None else changed
    return made


def compiled_inside() -> nn.Module:
    return with_middle(lambda layer: compile_(layer, backend="eager"))


def quantised() -> nn.Module:
    quantise: Any = torch.ao.quantization.quantize_dynamic
    made: nn.Module = quantise(net(), {nn.Linear}, torch.qint8)
    return made


jit_trace: Any = torch.jit.trace
compile_: Any = torch.compile


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "scripted": (lambda: torch.jit.script(net()), r" \(RecursiveScriptModule\): TorchScript"),
    "traced": (lambda: jit_trace(net(), X), r" \(TopLevelTracedModule\): TorchScript"),
    "scripted inside": (
        lambda: with_middle(torch.jit.script),
        r"2 \(RecursiveScriptModule\): TorchScript",
    ),
    "traced inside": (
        lambda: with_middle(lambda layer: jit_trace(layer, torch.ones(1, 8))),
        r"2 \(TopLevelTracedModule\): TorchScript",
    ),
    "compiled": (lambda: compile_(net(), backend="eager"), r" \(OptimizedModule\): torch\.compile"),
    "compiled inside": (compiled_inside, r"2 \(OptimizedModule\): torch\.compile"),
    "data parallel": (lambda: nn.DataParallel(net()), r" \(DataParallel\): .*`\.module`"),
    "quantised": (quantised, r"0 \(Linear\): quantised"),
    "lazy": (lambda: with_middle(lambda _: nn.LazyLinear(8)), r"2\.weight .*shape"),
}
old_tools = pytest.mark.filterwarnings(
    "ignore:.*torch.*:DeprecationWarning",
    "ignore:torch.quantize_per_tensor:UserWarning",
    "ignore:.isinstance.treespec:FutureWarning",
)


@pytest.mark.slow
@old_tools
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_cut_is_refused_by_name(kind: str) -> None:
    """The trace, the build with and without an example, and `train` refuse it."""
    make, words = REFUSED[kind]
    made = make()
    axes = axes_of(net(), {"0.weight": (Along("h", 8), FixedPart(6)), "0.bias": (Along("h", 8),)})
    cut = UnitCut(axes, {"h": np.array([0, 5])})
    x, y = torch.randn(24, 6), torch.arange(24) % 3
    data = submodel.dataset((x, y), (x, y))
    attempts: list[Callable[[], object]] = [
        lambda: trace(made, X),
        lambda: build_module(made, cut),
        lambda: build_module(made, cut, example_inputs=X),
        lambda: build_module(made, WHOLE),
        lambda: submodel.train(made, data, {"train": {"rounds": 1}, "data": {"partition": "iid"}}),
    ]
    for attempt in attempts:
        with pytest.raises(ConfigError, match=f"{words}|no parameters"):
            attempt()


class Scaled(nn.Module):
    """A parametrisation with its own weight and size."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.gain = rows, nn.Parameter(torch.ones(rows, 1))

    def forward(self, weight: Tensor) -> Tensor:
        return weight.view(self.rows, -1) * self.gain


class Symmetric(nn.Module):
    """A parametrisation whose axes cannot be cut separately."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.heads = nn.Linear(6, 8), nn.Linear(8, 3), 2

    def forward(self, x: Tensor) -> Any:
        y = self.first(x).view(x.shape[0], self.heads, -1)
        return self.last(torch.relu(y).flatten(1))


def compiled_in_place() -> nn.Module:
    made = net()
    made.compile(backend="eager")
    return made


def used(module: nn.Module) -> nn.Module:
    module(X)
    return module


def pruned(layer: nn.Linear) -> None:
    prune.l1_unstructured(layer, "weight", 0.5)  # type: ignore[no-untyped-call]


CUT: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "orthogonal": (lambda: with_middle(parametrizations.orthogonal), 1),
    "parametrised": (
        lambda: with_middle(lambda la: register_parametrization(la, "weight", Scaled(8))),
        2,
    ),
    "parametrised as a whole": (
        lambda: with_middle(lambda la: register_parametrization(la, "weight", Symmetric())),
        0,
    ),
    "pruned": (lambda: with_middle(pruned), 2),
    "pruned and used": (lambda: used(with_middle(pruned)), 2),
    "a graph": (lambda: torch.fx.symbolic_trace(net()), 2),
    "a graph with sizes": (lambda: torch.fx.symbolic_trace(Heads()), 2),
    "compiled in place": (compiled_in_place, 2),
    "averaged": (lambda: torch.optim.swa_utils.AveragedModel(net()), 2),
    "bfloat16": (lambda: net().bfloat16().float(), 2),
}


@pytest.mark.slow
@old_tools
@pytest.mark.parametrize("kind", CUT)
def test_what_can_be_cut_is_cut_right(kind: str) -> None:
    make, axes = CUT[kind]
    measured = battery(Entry(kind, lambda: (make(), (X,))))
    assert measured.claimed
    assert measured.gap < 1e-12
    assert len(measured.axes.sizes) == axes


@old_tools
def test_an_exported_program_is_cut_as_its_module() -> None:
    program = torch.export.export(net(), (X,))
    with pytest.raises(ConfigError, match=r"^module: .*ExportedProgram .*nn\.Module"):
        trace(program, X)  # type: ignore[arg-type]
    module = program.module()
    cut = cut_by(trace(module, X), sampling="bernoulli")
    small = build_module(module, cut, example_inputs=X)
    plain = build_module(net(), UnitCut(cut.axes, cut.units), example_inputs=X)
    torch.testing.assert_close(small(X), plain(X))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("norm", [nn.utils.weight_norm, parametrizations.weight_norm])
def test_weight_norm_is_cut_with_its_directions(norm: Callable[[nn.Linear], Any]) -> None:
    """The masked model is no reference, as a direction of zeros has no length to divide by."""
    made = with_middle(norm)
    axes = trace(made, X)
    assert set(axes.sizes.values()) == {8}
    inner = next(iter(axes.sizes))
    small = build_module(made, UnitCut(axes, {inner: np.array([0, 3, 4])}), example_inputs=X)
    gains = [name for name, p in small.named_parameters() if p.shape == (8, 1)]
    assert len(gains) == 1  # one per row, without a cut
    middle: Any = small[2]  # type: ignore[index]
    torch.testing.assert_close(middle.weight.norm(dim=1), small.get_parameter(gains[0]).flatten())
    assert middle.weight.shape == (8, 3)
    assert middle.in_features == 3


@old_tools
@pytest.mark.parametrize("norm", [spectral_norm, parametrizations.spectral_norm])
def test_a_spectral_norm_is_that_of_the_kept_part(norm: Callable[[nn.Linear], Any]) -> None:
    """The masked model divides by a norm from parts of the full matrix's vectors."""
    made = with_middle(norm)
    measured = battery(Entry("spectral norm", lambda: (with_middle(norm), (X,))))
    assert not measured.claimed
    kept = np.array([0, 3, 4])
    small: Any = build_module(made, UnitCut(measured.axes, {next(iter(measured.axes.sizes)): kept}))
    small(X)
    part = next(p for p in made[2].parameters() if p.dim() == 2).detach()[:, kept]
    wanted = part / torch.linalg.matrix_norm(part, 2)
    torch.testing.assert_close(small[2].weight, wanted, atol=1e-3, rtol=1e-3)


def test_declared_axes_are_built_without_an_example() -> None:
    made = with_middle(pruned)
    table: Any = {"2.weight_orig": ("h",), "2.weight_mask": ("h",), "2.bias": ("h",)}
    tensors = {**dict(made.named_parameters()), **dict(made.named_buffers())}
    axes = declare(tensors, {**table, "4.weight": (None, "h")})
    small: Any = build_module(made, UnitCut(axes, {"h": np.array([1, 6])}))
    assert (small[2].out_features, small[2].weight.shape) == (2, (2, 8))


FEW = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))


def tries(m: Any, x: Tensor) -> Any:
    """`first` fails on one-dimensional tensors."""
    h = m.up(x).relu()
    try:
        h = h + m.first(h[None, None])
    except RuntimeError:
        h = m.then(m, h)
    return m.down(h)


def in_parts(m: Any, h: Tensor) -> Tensor:
    h = m.middle(h).relu()
    return h.view(h.shape[0], 2, m.width // 2).transpose(1, 2).reshape(-1, m.width)


def tries_net(
    then: Callable[[Any, Tensor], Tensor] = in_parts, middle: nn.Module | None = None
) -> Net:
    torch.manual_seed(0)
    return Net(
        tries,
        first=nn.Conv1d(8, 8, 1),
        up=nn.Linear(6, 8),
        middle=middle or nn.Linear(8, 8),
        down=nn.Linear(8, 3),
        then=then,
        width=8,
    )


def test_numbers_after_a_caught_error_are_those_of_the_code() -> None:
    """If read as torch's own number, the 2 would be cut, and the sub-model would fail."""
    made = tries_net()
    axes = trace(made, FEW)
    assert axes.cut_by_capacity == {"up": 8, "middle#2": 4}
    assert "written in the code" in axes.kept_whole["middle#1"]
    cut = cut_by(axes)
    assert build_module(made, cut, example_inputs=FEW)(FEW).shape == (2, 3)


def test_a_sub_model_that_does_not_run_names_the_layer_that_fails() -> None:
    made = tries_net(lambda m, h: m.middle(h).view(-1, 8))
    axes = trace(made, FEW, verify=False)
    small = build_module(made, UnitCut(axes, {}))
    small.get_submodule("middle").register_forward_hook(lambda *_: torch.ones(2, 7))
    with pytest.raises(SubmodelError, match=r"\(Net\) .*'\[-1, 8\]'"):
        OutputCheck(made, FEW).check(small, UnitCut(axes, {}))


def test_operations_after_a_caught_error_are_not_those_of_its_layer() -> None:
    flops = count_flops(tries_net(), FEW).by_layer
    assert flops["middle"] == 2 * 2 * 8 * 8
    assert flops["down"] == 2 * 2 * 8 * 3
    assert flops.get("first", 0) == 0
    assert flops[""] == 2 * 2 * (6 * 8 + 8 * 8 + 8 * 3)


def test_the_layer_that_cannot_take_one_example_is_named_after_a_caught_error() -> None:
    reason = refusal(tries_net(middle=nn.BatchNorm1d(8)), FEW) or ""
    assert reason.startswith("middle (BatchNorm1d)")
