"""Forwards of a module with other values in its tensors, for comparing what comes out."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from submodel.model.axes.forward import isolate, outputs_of, run, weights_of
from submodel.model.axes.keep import preserve
from submodel.model.axes.memory import Memory
from submodel.model.axes.on_demand import OnDemand
from submodel.model.inputs import Inputs
from submodel.randomness import key

Outputs = Callable[[Any], Any]
"""What of a model's result counts."""


LARGE_MODEL = 1 << 26
"""Bytes of a model whose trial values are made when they are read."""


class Trial:
    """A module whose tensors hold values of the scale that keeps signals alive.

    Fresh layers of zeros or ones, or a branch that starts at a millionth, would hide a mistake. If
    no output is finite then, the values are the module's own. Use it within `isolate`.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Inputs,
        outputs: Outputs | None,
        convert: Callable[[Any], Any],
    ) -> None:
        self.module, self.inputs, self.outputs = module, convert(inputs), outputs
        self.weights = weights_of(module)
        size = sum(p.numel() * p.element_size() for p in module.parameters())
        self._is_large = size >= LARGE_MODEL and not any(p.is_meta for p in module.parameters())
        self.values: Mapping[str, Tensor] = TrialValues(self.weights, convert, is_lively=True)
        self.before = self.forward(self.values)
        if not self.finite:
            self.values = TrialValues(self.weights, convert, is_lively=False)
            self.before = self.forward(self.values)

    @property
    def finite(self) -> bool:
        """Whether every output of the module holds finite values."""
        return all(bool(r.isfinite().any()) for r in self.before if r.numel())

    def forward(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """What the module gives out with these values in its tensors."""
        if self._is_large:
            # whatever the reason is that it fails, it will show again with the values in place
            with contextlib.suppress(Exception), self.offering(values):
                results = self.results(self.module)
                if not any(r.is_floating_point() and bool(r.isnan().any()) for r in results):
                    return results
        with self.holding(values):
            return self.results(self.module)

    @contextlib.contextmanager
    def offering(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """The module's tensors have other values in here; large ones only when they are read."""
        if not self._is_large:
            with self.holding(values):
                yield
            return
        parameters = {n: t for n, t in self.weights.items() if isinstance(t, nn.Parameter)}
        buffers = {n: t for n, t in self.weights.items() if n not in parameters}
        with _exchange(buffers, values), OnDemand(parameters, values):
            yield

    def results(self, module: nn.Module) -> list[Tensor]:
        """The outputs of this or another module; if it leaves a state, of a second call too."""
        memory = Memory(module)
        with preserve(module):
            results = outputs_of(run(module, self.inputs), self.outputs)
            results = [result.detach().clone() for result in results]
            if memory.has_changed():
                again = outputs_of(run(module, self.inputs), self.outputs)
                results += [result.detach().clone() for result in again]
            return results

    @contextlib.contextmanager
    def holding(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """The module's own tensors hold other values in here."""
        with _exchange(self.weights, values):
            yield


@contextlib.contextmanager
def _exchange(tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Iterator[None]:
    """The tensors hold other values in here."""
    original_data = [(tensor, tensor.data) for tensor in tensors.values()]
    try:
        for name, tensor in tensors.items():
            is_buffer = not isinstance(tensor, nn.Parameter)  # a forward may write in a buffer
            tensor.data = values[name].clone() if is_buffer else values[name]
        yield
    finally:
        for tensor, data in original_data:
            tensor.data = data


class TrialValues(Mapping[str, Tensor]):
    """The values of a trial, made when they are asked for: a model may fill the memory as it is.

    Those of smaller models are kept, as every forward of a trial asks for all.

    Args:
        weights: the module's tensors, by all their names.
        convert: to another precision.
        is_lively: whether the values are of the scale that keeps signals alive, or the module's.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], convert: Callable[[Any], Any], is_lively: bool
    ) -> None:
        first: dict[int, str] = {}  # a tensor of several names has one value
        self._names = {name: first.setdefault(id(t), name) for name, t in weights.items()}
        # the values of now, whatever the module's tensors hold meanwhile
        self._data = {name: weights[name].detach() for name in first.values()}
        self._convert, self._is_lively = convert, is_lively
        self._factors: dict[str, float | None] = {}
        size = sum(t.numel() * t.element_size() for t in self._data.values())
        self._values_so_far: dict[str, Tensor] | None = {} if size < LARGE_MODEL else None

    def __getitem__(self, name: str) -> Tensor:
        alias = self._names[name]
        if self._values_so_far is None:
            return self._make(alias)
        if (
            alias not in self._values_so_far
        ):  # nobody writes to them: what a forward writes is put back
            self._values_so_far[alias] = self._make(alias)
        return self._values_so_far[alias]

    def _make(self, alias: str) -> Tensor:
        value: Tensor = self._convert(self._data[alias])
        if not self._is_lively:
            return value
        if alias not in self._factors:
            self._factors[alias] = _factor(value)
        factor = self._factors[alias]
        return _lively(alias, value) if factor is None else value * factor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Example:
    """An example input of a module, with trials of both in their own and in double precision."""

    def __init__(self, module: nn.Module, inputs: Inputs, outputs: Outputs | None = None) -> None:
        self.module, self.inputs, self.outputs = module, inputs, outputs

    @cached_property
    def plain(self) -> Trial:
        """With values of the types that the module has."""
        return self._trial(lambda value: value)

    @cached_property
    def double(self) -> Trial:
        """In double precision: it tells a mistake from rounding errors that a net amplifies."""
        with double():
            return self._trial(as_double)

    def _trial(self, convert: Callable[[Any], Any]) -> Trial:
        with torch.no_grad(), isolate(self.module):
            return Trial(self.module, self.inputs, self.outputs, convert)


def _factor(value: Tensor) -> float | None:
    """What brings weights that differ to the scale at which every unit matters."""
    is_plain = value.is_floating_point() and value.layout is torch.strided
    if not is_plain or value.numel() < 2 or value.dim() < 2 or value.min() == value.max():
        return None
    size = value.float().square().mean().sqrt().item()
    return math.sqrt(value.shape[0] / value.numel()) / size if math.isfinite(size) else None


def _lively(name: str, value: Tensor) -> Tensor:
    """Weights of the same kind, at which every unit matters and no two are alike."""
    if not value.is_floating_point() or value.numel() == 0 or value.layout is not torch.strided:
        return value
    if value.numel() == 1:
        return value if value.item() else torch.full_like(value, 0.5)
    random = torch.Generator().manual_seed(key(0, "verify", name) % 2**63)
    if value.dim() > 1:
        scale = math.sqrt(value.shape[0] / value.numel())
        return (torch.randn(value.shape, generator=random) * scale).to(value)
    if value.min() != value.max():
        return value
    return (torch.rand(value.shape, generator=random) + (0.5 if value[0] else -0.5)).to(value)


@contextlib.contextmanager
def double() -> Iterator[None]:
    """Constants made in here have double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def as_double(value: Any) -> Any:
    """The same values in double precision, in nested containers too."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: as_double(item) for key, item in value.items()}
    return type(value)(map(as_double, value)) if type(value) in (list, tuple) else value


def distance(before: list[Tensor], after: list[Tensor]) -> float:
    """The largest difference between outputs, relative to the largest value of each.

    It is infinite if they differ in number, in shape, or in what is finite.

    >>> distance([torch.tensor([2.0, 4.0])], [torch.tensor([2.0, 3.0])])
    0.25
    """
    if len(before) != len(after):
        return math.inf
    farthest = 0.0
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape or old.dtype != new.dtype:
            return math.inf
        if not (old.is_floating_point() or old.is_complex()):
            if not torch.equal(old, new):
                return math.inf
            continue
        finite = old.isfinite()
        if not torch.equal(finite, new.isfinite()):
            return math.inf
        gap, scale = (new - old)[finite].abs(), old[finite].abs()
        if gap.numel() and (largest := gap.max().item()) > 0:
            farthest = max(farthest, largest / size if (size := scale.max().item()) else math.inf)
    return farthest
