"""Verification: permuting the units of every axis in all tensors must not change the outputs.

This holds exactly if dimensions are coupled correctly, for any model, so it checks
traced and declared axes alike. It does not detect that more could be cut.

A `Trial` runs a module with other values in its tensors. For a large model, memory may not suffice
for a second set of weights: its parameters then have shapes and types but no memory, and each
operator that reads a parameter gets its values, which are freed afterwards. Cases in which this is
impossible (a forward pass that writes to parameters, or reads them without operators of torch) are
detected, and the module gets all its values at once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor, nn

from submodel.core.errors import SubmodelError
from submodel.core.randomness import generator, key
from submodel.model.axes.declare import CLASSES, Axes, members
from submodel.model.axes.forward import isolate, outputs_of, run, weights_of
from submodel.model.axes.keep import DispatchMode, StateSnapshot, copy_with, is_large, keep_shared
from submodel.model.axes.layout import Indices
from submodel.model.axes.record import storage
from submodel.model.inputs import Inputs, map_leaves

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""Allowed change of an output relative to the largest: sums have another order."""

SMALL = 8
"""Below this size, axes get more draws: two of them may draw the same permutation by chance."""


class AxesError(SubmodelError):
    """Axes that do not fit the model."""


Values = Callable[[str], Tensor]
"""The value of a tensor by name, computed lazily; it must not be written to."""


class OnDemand(DispatchMode):
    """Context in which an operator that reads a parameter of a module gets another value for it.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> with torch.no_grad(), OnDemand({"weight": net.weight}, lambda name: torch.ones(1, 2)):
    ...     net(torch.ones(2))
    tensor([2.])
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], values: Values) -> None:
        super().__init__()
        self._parameters, self._values = parameters, values
        self._names: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._placeholders: list[Tensor] = []
        self._original_data: list[tuple[nn.Parameter, Tensor]] = []

    def __enter__(self) -> OnDemand:
        for name, parameter in self._parameters.items():
            if any(parameter is other for other, _ in self._original_data):
                continue  # tied: a second name
            self._original_data.append((parameter, parameter.data))
            kind = self._values(name).dtype
            placeholder = torch.full((), torch.nan, dtype=kind, device=parameter.device)
            self._placeholders.append(placeholder)
            self._names[storage(placeholder)] = (name, tuple(parameter.shape))
            parameter.data = placeholder.expand(parameter.shape)
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for parameter, data in self._original_data:
            parameter.data = data

    def _see(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        if func is torch.ops.aten.detach.default:
            return func(*args, **keywords)  # detached tensors get values when they are read
        if func._schema.is_mutable:
            for place, argument in enumerate(func._schema.arguments):
                value = args[place] if place < len(args) else keywords.get(argument.name)
                items = value if isinstance(value, list | tuple) else (value,)
                if argument.is_write and any(map(self._is_placeholder, items)):
                    raise NotOnDemandError(f"{func} writes to a parameter")
        return func(
            *map(self._with_values, args), **{k: self._with_values(v) for k, v in keywords.items()}
        )

    def _is_placeholder(self, value: Any) -> bool:
        is_plain = isinstance(value, Tensor) and value.layout is torch.strided
        return is_plain and storage(value) in self._names

    def _with_values(self, value: Any) -> Any:
        """The argument of an operator, with placeholders replaced by values."""
        if isinstance(value, list | tuple):
            return type(value)(map(self._with_values, value))
        if not self._is_placeholder(value):
            return value
        name, shape = self._names[storage(value)]
        if tuple(value.shape) != shape:
            raise NotOnDemandError(f"{name} is read as another shape")
        return self._values(name)


class NotOnDemandError(RuntimeError):
    """Raised if a model needs all its values at once."""


Outputs = Callable[[Any], Any]
"""Selects the outputs to compare from a model's result."""


class Trial:
    """A module with random or rescaled values in its tensors, such that all units matter.

    Initial values of zero or one, or a branch that starts at a millionth, would hide a mistake. If
    no output is finite with these values, the module's own values are used.
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
        self._is_large = is_large(module)
        for is_rescaled in (True, False):
            self.values = trial_values(self.weights, convert, self._is_large, is_rescaled)
            self.before = self.forward(self.values)
            if self.finite:
                break

    @property
    def finite(self) -> bool:
        """Return whether every output of the module has finite values."""
        return all(bool(r.isfinite().any()) for r in self.before if r.numel())

    def forward(self, values: Values) -> list[Tensor]:
        """The outputs of the module with these values in its tensors."""
        if self._is_large:
            # an error that has another reason is raised again below
            with contextlib.suppress(Exception), self.with_values(values) as running:
                results = self.results(running)
                if not any(r.is_floating_point() and bool(r.isnan().any()) for r in results):
                    return results
        with self.with_values(values, at_once=True) as running:
            return self.results(running)

    @contextlib.contextmanager
    def with_values(self, values: Values, at_once: bool = False) -> Iterator[nn.Module]:
        """A copy of the module with other values; a large model gets them when they are read."""
        on_demand = self._is_large and not at_once
        own = {  # clones, as a forward pass may write to them
            name: tensor if on_demand and isinstance(tensor, nn.Parameter) else values(name).clone()
            for name, tensor in self.weights.items()
        }
        running = copy_with(self.module, own)
        parameters = dict(running.named_parameters(remove_duplicate=False))
        with (
            keep_shared(self.module, running) as shared,
            exchange(self.weights, lambda name: values(name).clone(), shared),
            OnDemand(parameters, values) if on_demand else contextlib.nullcontext(),
        ):
            yield running

    def results(self, module: nn.Module) -> list[Tensor]:
        """The outputs of a temporary module; if it changes its state, of a second call too."""
        with isolate(module, in_place=True):
            snapshot = StateSnapshot(module)
            results: list[Tensor] = []
            for again in (False, True):
                if not again or snapshot.has_changed():
                    outputs = outputs_of(run(module, self.inputs), self.outputs)
                    results += [output.detach().clone() for output in outputs]
            return results


@contextlib.contextmanager
def exchange(
    tensors: Mapping[str, Tensor], values: Values, which: Iterable[Tensor]
) -> Iterator[None]:
    """Replace the values of the tensors in ``which`` within the block."""
    ids = set(map(id, which))
    exchanged = {name: tensor for name, tensor in tensors.items() if id(tensor) in ids}
    original_data = [(tensor, tensor.data) for tensor in exchanged.values()]
    try:
        for name, tensor in exchanged.items():
            tensor.data = values(name)
        yield
    finally:
        for tensor, data in original_data:
            tensor.data = data


def trial_values(
    weights: Mapping[str, Tensor], convert: Callable[[Any], Any], is_large: bool, is_rescaled: bool
) -> Values:
    """The values of a trial: rescaled such that all units matter, or the module's own.

    For large models they are computed at every access, otherwise once.
    """
    first: dict[int, str] = {}  # a tensor with several names has one value
    names = {name: first.setdefault(id(t), name) for name, t in weights.items()}
    # the present values, as the module's tensors may be exchanged meanwhile
    data = {name: weights[name].detach() for name in first.values()}
    factors: dict[str, float | None] = {}

    def make(name: str) -> Tensor:
        value: Tensor = convert(data[name])
        if not is_rescaled:
            return value
        if name not in factors:
            factors[name] = _factor(value)
        factor = factors[name]
        return _rescale(name, value) if factor is None else value * factor

    kept = make if is_large else cache(make)
    return lambda name: kept(names[name])


class Example:
    """An example input of a module, with a trial in the module's and one in double precision."""

    def __init__(self, module: nn.Module, inputs: Inputs, outputs: Outputs | None = None) -> None:
        self.module, self.inputs, self.outputs = module, inputs, outputs

    @cached_property
    def plain(self) -> Trial:
        """The trial in the types of the module."""
        return self._trial(lambda value: value)

    @cached_property
    def double(self) -> Trial:
        """The trial in double precision, to separate mistakes from amplified rounding errors."""
        with double():
            return self._trial(as_double)

    def _trial(self, convert: Callable[[Any], Any]) -> Trial:
        with torch.no_grad():
            return Trial(self.module, self.inputs, self.outputs, convert)


def _factor(value: Tensor) -> float | None:
    """The factor that rescales differing weights; None if they must be drawn."""
    is_plain = value.is_floating_point() and value.layout is torch.strided
    if not is_plain or value.numel() < 2 or value.dim() < 2 or value.min() == value.max():
        return None
    size = value.float().square().mean().sqrt().item()
    return math.sqrt(value.shape[0] / value.numel()) / size if math.isfinite(size) else None


def _rescale(name: str, value: Tensor) -> Tensor:
    """Random weights of the same shape and type, such that every unit matters and units differ."""
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
    """Set the default type of new tensors to double precision within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def as_double(value: Any) -> Any:
    """Convert tensors, also in nested containers, to double precision."""

    def convert(leaf: Any) -> Any:
        return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    return map_leaves(convert, value)


def distance(before: list[Tensor], after: list[Tensor]) -> float:
    """The largest difference between outputs, relative to the largest value of each.

    It is infinite if they differ in number, in shape, or in the positions of finite values.

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


def verify(
    module: nn.Module, example_inputs: Inputs, axes: Axes, *, outputs: Outputs | None = None
) -> None:
    """Raise `AxesError` unless the outputs stay the same when all axes are permuted.

    The weights are temporarily replaced by values with which every unit matters: initial values of
    zero or one, or a branch that starts at a millionth, would hide a wrong coupling.

    >>> from submodel.model.axes.declare import declare
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> table = {"0.weight": ("hidden",), "2.weight": (None, "hidden")}
    >>> verify(net, torch.ones(1, 4), declare(dict(net.named_parameters()), table))
    Traceback (most recent call last):
    submodel.model.axes.verify.AxesError: axis 'hidden' (0.weight[0], 2.weight[1]): permuting ...
    """
    verify_on(Example(module, example_inputs, outputs), axes)


@torch.no_grad()
def verify_on(example: Example, axes: Axes) -> None:
    """`verify` for an example that other checks share."""
    if not axes.sizes:
        return
    faulty_axes = _faulty_axes(example.plain, axes)
    if faulty_axes:  # some nets amplify rounding errors, so it is checked again
        with contextlib.suppress(RuntimeError), double():
            faulty_axes = _faulty_axes(example.double, axes)
    if faulty_axes:
        raise AxesError("\n".join(axis_problem(axes, axis) for axis in faulty_axes))


def _faulty_axes(trial: Trial, axes: Axes) -> list[str]:
    """The axes that change the outputs by themselves; all axes if only all together do; or none."""
    if not trial.finite:
        raise AxesError("axes cannot be verified: no output is finite on the example inputs")

    def moves_outputs(units: Mapping[str, Indices]) -> bool:
        after = trial.forward(_permute(trial.values, axes, units))
        return _differ(trial.before, after, units.get(CLASSES))

    for draw in range(3 if min(axes.sizes.values()) < SMALL else 1):
        units = {
            axis: generator(0, "permute axes", draw, axis).permutation(size)
            for axis, size in axes.sizes.items()
        }
        if moves_outputs(units):
            return [axis for axis in units if moves_outputs({axis: units[axis]})] or list(units)
    return []


def _permute(values: Values, axes: Axes, units: Mapping[str, Indices]) -> Values:
    def permuted(name: str) -> Tensor:
        value = values(name)
        for d, layout in enumerate(axes.layouts.get(name, ())):
            if any(axis in units for axis in layout.axes()):
                order = torch.from_numpy(layout.indices(units)).to(value.device)
                value = value.index_select(d, order)
        return value

    return permuted


def _differ(before: list[Tensor], after: list[Tensor], classes: Indices | None) -> bool:
    """Return whether an output changed; outputs of classes are permuted first."""
    if classes is not None:
        before = [
            old.index_select(-1, torch.from_numpy(classes).to(old.device))
            if old.dim() and old.shape[-1] == len(classes)
            else old
            for old in before
        ]
    if len(before) != len(after):
        return True
    return any(
        distance([old], [new]) > TOLERANCE.get(old.dtype, 1e-4)
        for old, new in zip(before, after, strict=True)
    )


def axis_problem(axes: Axes, axis: str, where: str = "") -> str:
    """A message that an axis cannot be cut; ``where`` names the model if it is a sub-model."""
    names = ", ".join(name for name, _ in members(axes, axis))
    return (
        f"axis {axis!r} ({names}): permuting its units{where} changes the outputs, so "
        "these dimensions must not be cut together; freeze the axis, or report the model"
    )
