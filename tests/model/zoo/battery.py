"""The battery that every net of the zoo goes through.

`battery(entry)` traces a net, cuts it, and checks what must hold for every net:

1. permuting the units of its axes through all its tensors leaves the outputs where they are;
2. a sub-model is the masked model wherever the axes say so, by measurement;
3. a sub-model reads no tensor of the full model and sends it no gradient;
4. the model comes back from tracing and building as it was given;
5. at capacity 1 the sub-model is the model, bit for bit, outputs and gradients;
6. two clients of two capacities train a round, on the engine that a run has by default.

It computes positions, permutations and masks by itself, in double precision where the net can.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import submodel
from submodel.api import Result
from submodel.core.errors import SubmodelError
from submodel.model.axes import Axes, trace
from submodel.model.axes.layout import Along, FixedPart, Layout, Product
from submodel.model.build import build_module
from submodel.model.build.checks import OutputCheck
from submodel.model.cut import UnitCut
from submodel.schemes import Draw, Random, Static
from submodel.schemes.draw import draw_units
from tests.model.nets import Entry, Inputs
from tests.pins import errors
from tests.support.reference import plain_attention
from tests.support.snapshot import changes, snapshot, tensors

CAPACITIES = (0.25, 0.5, 0.75)
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3}
"""Relative tolerance of outputs, for sums in another order.

Some nets compute norms in single precision, whatever their weights.
"""

UNBATCHED = {"experts", "stacked-experts", "message-passing", "graph-attention"}
"""Nets whose inputs or outputs are not one row per example, so that batches are impossible."""


@dataclass(frozen=True)
class Measured:
    """Measurements of the battery on a net that passed."""

    axes: Axes
    claimed: bool  # all tried cuts are declared exact
    gap: float  # largest relative difference from the masked model over all tried cuts
    dtype: torch.dtype  # precision of the measurement


def battery(entry: Entry) -> Measured:
    """Run all checks on a net; an AssertionError names the failed check and its place."""
    bench = Bench(entry)
    bench.check_unchanged()
    bench.check_permutations()
    bench.check_gradients()
    bench.check_whole()
    measured = bench.measure()
    bench.check_training()
    return measured


class Bench:
    """A net under test with its axes."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.module, self.inputs = entry.make()
        self.before = snapshot(self.module)
        self.axes = trace(self.module, self.inputs, outputs=entry.outputs)
        self.check = OutputCheck(self.module, self.inputs, entry.outputs)

    @cached_property
    def precise(self) -> tuple[nn.Module, Inputs, torch.dtype]:
        """The net and its inputs in double precision, if possible."""
        module, inputs = self.entry.make()[0].double(), _double(self.inputs)
        with contextlib.suppress(RuntimeError), self._quiet(torch.float64):
            found = self._outputs(module, inputs)
            if all(t.dtype != torch.float32 and bool(t.isfinite().any()) for t in found):
                return module, inputs, torch.float64
        return *self.entry.make(), torch.float32

    @cached_property
    def cuts(self) -> list[UnitCut]:
        """Draw units, unequally many of each axis; random ones, and the first, of half."""
        drawn = [
            draw_units(Random("bernoulli"), self.axes, capacity, Draw(7, number, 0))
            for number, capacity in enumerate(CAPACITIES)
        ]
        return [
            *drawn,
            draw_units(Random("fixed"), self.axes, 0.5, Draw(7, 0, 0)),
            draw_units(Static(), self.axes, 0.5, Draw(7, 0, 0)),
        ]

    def check_unchanged(self) -> None:
        """Check that tracing and building leave the model unchanged."""
        self._unchanged("tracing")
        for cut in self.cuts[:2]:
            self.build(cut)
        self._unchanged("building")

    def check_permutations(self) -> None:
        """Check that permuting all axes changes no output; on failure, find the axis."""
        module, inputs, dtype = self.precise
        with self._quiet(dtype):
            before = self._outputs(module, inputs)

            def moved(orders: Mapping[str, np.ndarray]) -> float:
                with permuted(module, self.axes, orders):
                    return _gap(before, self._outputs(module, inputs))

            random = np.random.default_rng(11)
            for _ in range(3):
                orders = {axis: random.permutation(n) for axis, n in self.axes.sizes.items()}
                if (gap := moved(orders)) > TOLERANCE[dtype]:
                    alone = {axis: moved({axis: order}) for axis, order in orders.items()}
                    guilty = {axis: by for axis, by in alone.items() if by > TOLERANCE[dtype]}
                    raise AssertionError(
                        f"{self.entry}: permuting moves outputs by {gap}: {guilty}"
                    )

    def check_gradients(self) -> None:
        """Check that a backward pass of the sub-model only uses its own tensors."""
        names = _with_gradient(self.entry.make()[0], self._loss)
        foreign = {
            tensor.untyped_storage()._cdata: path
            for path, tensor in tensors(self.module).items()
            if tensor.numel()
        }
        for tensor in _tensors(self.inputs):
            foreign.pop(tensor.untyped_storage()._cdata, None)
        for cut in self.cuts[:2]:
            small = self.build(cut)
            with _Reads(foreign) as reads:
                loss = self._loss(small)
            assert not reads.found, f"{self.entry}: the sub-model reads {sorted(reads.found)}"
            own = {id(p) for p in small.parameters()}
            strange = [tuple(leaf.shape) for leaf in _leaves(loss) if id(leaf) not in own]
            assert not strange, f"{self.entry}: gradients go to foreign tensors {strange}"
            loss.backward()  # type: ignore[no-untyped-call]
            filled = {name for name, p in small.named_parameters() if p.grad is not None}
            assert filled == names, f"{self.entry}: {filled ^ names}"
        self._unchanged("a backward pass of the sub-model")

    def check_whole(self) -> None:
        """Check capacity 1: equal outputs and gradients bit for bit, from the same layout."""
        whole = build_module(self.module, UnitCut(self.axes, {}))
        with torch.no_grad():
            pairs = zip(
                self._outputs(whole, self.inputs),
                self._outputs(self.module, self.inputs),
                strict=True,
            )
            assert all(_same_bits(a, b) for a, b in pairs), f"{self.entry}: other bits"
        full, _ = self.entry.make()
        for module in (whole, full):
            self._loss(module).backward()  # type: ignore[no-untyped-call]
        for (name, a), b in zip(whole.named_parameters(), full.parameters(), strict=True):
            assert a.stride() == b.stride(), f"{self.entry}: {name} lies otherwise in memory"
            assert (a.grad is None) == (b.grad is None), f"{self.entry}: {name}"
            if a.grad is not None and b.grad is not None:
                assert _same_bits(a.grad, b.grad), f"{self.entry}: gradient of {name}"

    def measure(self) -> Measured:
        """Measure the gap between sub-models and masked models; it must be zero for exact axes."""
        module, inputs, dtype = self.precise
        check = OutputCheck(module, inputs, self.entry.outputs)
        gaps, all_exact = [], []
        with self._quiet(dtype):
            for cut in self.cuts:
                small = build_module(module, cut)
                check.check(small, cut)
                with masked(module, cut):
                    wanted = self._outputs(module, inputs)
                gap = _gap(wanted, self._outputs(small, inputs))
                is_exact = not any(axis in self.axes.inexact for axis in cut.units)
                kept = {axis: len(units) for axis, units in cut.units.items()}
                words = f"{self.entry}: said to be exact, but off by {gap} with {kept} units"
                assert not is_exact or gap <= TOLERANCE[dtype], words
                gaps.append(gap)
                all_exact.append(is_exact)
        return Measured(self.axes, all(all_exact), max(gaps), dtype)

    def check_training(self) -> None:
        """Train a round with two clients: nothing is refused; all weights move and are finite."""
        if self.entry.name in UNBATCHED or not self.axes.cut_by_capacity:
            return
        if self.entry.refused is not None:
            with pytest.raises(SubmodelError, match=self.entry.refused) as caught:
                self._train()
            errors.check("training a net", self.entry.name, caught.value)
            return
        result = self._train()
        assert not result.history[-1]["refused"], f"{self.entry}: {result.history[-1]['refused']}"
        old, new = (dict(m.named_parameters()) for m in (self.entry.make()[0], result.model))
        assert all(bool(p.isfinite().all()) for p in new.values()), f"{self.entry}: not finite"
        moved = sum(not torch.equal(new[name], old[name]) for name in old)
        assert moved > len(old) / 2, f"{self.entry}: {moved} of {len(old)} parameters moved"

    def _train(self) -> Result:
        module, inputs = self.entry.make()
        names = inspect.signature(module.forward).parameters
        given = [(n, x) for n, x in zip_longest(names, inputs) if isinstance(x, Tensor)]
        rows: Any = tuple(torch.cat([x, x]) for _, x in given)
        if len(given) < len(inputs):  # some are left out
            rows = dict(zip([name for name, _ in given], rows, strict=True))
        with torch.no_grad():
            outputs = _first(self.entry.outputs, module(*inputs))
        targets = torch.zeros(torch.cat([outputs, outputs]).shape)
        part = rows, targets
        config: Any = {
            "data": {"partition": "iid"},
            "clients": {"count": 2, "per_round": 2, "capacities": [0.5, 1]},
            "local": {"lr": 0.01, "batch_size": 2},
            "train": {"rounds": 1},
        }
        return submodel.train(
            module,
            submodel.dataset(part, part),
            config,
            axes=self.axes,
            loss=_mean_square,
            outputs=partial(_first, self.entry.outputs),
            progress=False,
        )

    def build(self, cut: UnitCut) -> nn.Module:
        """Build the sub-model and check it on the example."""
        small = build_module(self.module, cut)
        self.check.check(small, cut)
        return small

    def _unchanged(self, after: str) -> None:
        found = changes(self.before, snapshot(self.module))
        assert not found, f"{self.entry} is changed by {after}: {found[:5]}"

    def _outputs(self, module: nn.Module, inputs: Inputs) -> list[Tensor]:
        torch.manual_seed(0)
        return list(_tensors(self.entry.result(module, inputs)))

    def _loss(self, module: nn.Module) -> Tensor:
        found = [t for t in self._outputs(module, self.inputs) if t.requires_grad]
        return torch.stack([t.float().square().mean() for t in found]).sum()

    @contextlib.contextmanager
    def _quiet(self, dtype: torch.dtype) -> Iterator[None]:
        """Disable gradients and fused kernels, with constants in the precision of the net."""
        default = torch.get_default_dtype()
        with torch.no_grad(), plain_attention():
            torch.set_default_dtype(dtype)
            try:
                yield
            finally:
                torch.set_default_dtype(default)


def positions(layout: Layout, orders: Mapping[str, Any]) -> list[int]:
    """Return the positions of the given units along a dimension, computed independently."""
    if isinstance(layout, FixedPart):
        return list(range(layout.size))
    if isinstance(layout, Along):
        return [int(u) for u in orders.get(layout.axis, range(layout.size))]
    if isinstance(layout, Product):
        steps = [math.prod(p.size for p in layout.parts[k + 1 :]) for k in range(len(layout.parts))]
        factors = [positions(part, orders) for part in layout.parts]
        return [
            sum(place * step for place, step in zip(places, steps, strict=True))
            for places in itertools.product(*factors)
        ]
    found, start = [], 0
    for part in layout.parts:
        found += [start + place for place in positions(part, orders)]
        start += part.size
    return found


@contextlib.contextmanager
def permuted(module: nn.Module, axes: Axes, orders: Mapping[str, Any]) -> Iterator[None]:
    """Permute the units of the net within this context."""
    with _changing(module, axes) as dimensions:
        for tensor, d, layout in dimensions:
            tensor.copy_(tensor.index_select(d, torch.tensor(positions(layout, orders))))
        yield


@contextlib.contextmanager
def masked(module: nn.Module, cut: UnitCut) -> Iterator[None]:
    """Set everything of the dropped units to zero within this context."""
    with _changing(module, cut.axes) as dimensions:
        for tensor, d, layout in dimensions:
            dropped = torch.ones(layout.size, dtype=torch.bool)
            dropped[positions(layout, cut.units)] = False
            tensor.index_fill_(d, dropped.nonzero().flatten(), 0)
        yield


@contextlib.contextmanager
def _changing(module: nn.Module, axes: Axes) -> Iterator[list[tuple[Tensor, int, Layout]]]:
    """Return the dimensions along axes; values may change in the context, on the original."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    before = {name: tensor.detach().clone() for name, tensor in found.items()}
    try:
        yield [
            (found[name].detach(), d, layout)
            for name, layouts in axes.layouts.items()
            if name in found  # one of the names of a tied tensor
            for d, layout in enumerate(layouts)
            if not isinstance(layout, FixedPart)
        ]
    finally:
        for name, value in before.items():
            found[name].detach().copy_(value)


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record which of the given memories operators read."""

    def __init__(self, memories: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memories = memories
        self.found: set[str] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for tensor in _tensors((args, kwargs or {})):
            if (path := self.memories.get(tensor.untyped_storage()._cdata)) is not None:
                self.found.add(path)
        return func(*args, **(kwargs or {}))


def _mean_square(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs.float().square().mean()


def _first(outputs: Callable[[Any], Any] | None, result: Any) -> Tensor:
    return next(_tensors(result if outputs is None else outputs(result)))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: _double(item) for key, item in value.items()}
    return type(value)(map(_double, value)) if type(value) in (list, tuple) else value


def _gap(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Return the largest relative difference of two lists of outputs."""
    found = 0.0
    for a, b in zip(one, other, strict=True):
        assert a.shape == b.shape, (tuple(a.shape), tuple(b.shape))
        finite = a.isfinite()
        if not torch.equal(finite, b.isfinite()):
            return math.inf
        if a.numel() and bool(finite.any()):
            scale = max(a[finite].abs().max().item(), 1e-30)
            found = max(found, (a - b)[finite].abs().max().item() / scale)
    return found


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Compare bit for bit: torch.equal, but with equal NaNs."""
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(7.5), other.nan_to_num(7.5))


def _with_gradient(module: nn.Module, loss: Callable[[nn.Module], Tensor]) -> set[str]:
    """Return the parameters that a backward pass of the full model reaches."""
    loss(module).backward()  # type: ignore[no-untyped-call]
    return {name for name, p in module.named_parameters() if p.grad is not None}


def _leaves(result: Tensor) -> Iterator[Tensor]:
    """Return the tensors at the ends of the graph of a result."""
    waiting, seen = [result.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [before for before, _ in node.next_functions]
