"""Verification: permuting the units of every axis through all tensors must not move the outputs.

That holds exactly when dimensions are coupled as they should be, whatever the model computes with
them, so it checks axes that were traced as well as axes that were declared. It cannot tell that
more could be cut.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from submodel.axes.declare import CLASSES, Axes
from submodel.axes.forward import Inputs, outputs_of, run, undisturbed, weights_of
from submodel.axes.layout import Indices
from submodel.errors import SubmodelError
from submodel.randomness import generator, key

TOLERANCE = {
    torch.float64: 1e-7,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}
"""How far an output may move, relative to the largest: sums are taken in another order."""

SMALL = 8
"""Two wrongly separated axes of few units may draw the same permutation: more draws for those."""


class AxesError(SubmodelError):
    """Axes that do not fit the model."""


@torch.no_grad()
def verify(
    module: nn.Module,
    example_inputs: Inputs,
    axes: Axes,
    *,
    outputs: Callable[[Any], Any] | None = None,
) -> None:
    """Raise `AxesError` unless the outputs stay put when all axes are permuted.

    The weights are replaced meanwhile by values of the scale that keeps signals alive: fresh layers
    of zeros or ones, or a branch that starts at a millionth, would hide a wrong coupling.

    >>> from submodel.axes.declare import declare
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> table = {"0.weight": ("hidden",), "2.weight": (None, "hidden")}
    >>> verify(net, torch.ones(1, 4), declare(dict(net.named_parameters()), table))
    Traceback (most recent call last):
    submodel.axes.verify.AxesError: axis 'hidden' (0.weight[0], 2.weight[1]): permuting ...
    """
    if not axes.sizes:
        return
    guilty = _guilty(module, example_inputs, axes, outputs)
    if guilty:  # some nets amplify rounding errors: look again before complaining
        with contextlib.suppress(RuntimeError), _double():
            guilty = _guilty(module, _as_double(example_inputs), axes, outputs, _as_double)
    if guilty:
        raise AxesError("\n".join(_complaint(axes, axis) for axis in guilty))


def _guilty(
    module: nn.Module,
    inputs: Inputs,
    axes: Axes,
    outputs: Callable[[Any], Any] | None,
    convert: Callable[[Any], Any] = lambda value: value,
) -> list[str]:
    """The axes that move the outputs on their own; all, if only all together do; or none."""
    weights = weights_of(module)

    def forward(values: Mapping[str, Tensor]) -> list[Tensor]:
        with _swapped(weights, values):
            found = outputs_of(run(module, inputs), outputs)
            return [result.detach().clone() for result in found]

    with undisturbed(module):
        values = {n: convert(t.detach()) for n, t in weights.items()}
        lively = {name: _lively(name, value) for name, value in values.items()}
        before = forward(lively)
        if _finite(before):
            values = lively
        else:
            before = forward(values)
        if not _finite(before):
            raise AxesError("axes cannot be verified: no output is finite on the example inputs")

        def moved(units: Mapping[str, Indices]) -> bool:
            return _differ(before, forward(_permuted(values, axes, units)), units.get(CLASSES))

        for draw in range(3 if min(axes.sizes.values()) < SMALL else 1):
            units = {
                axis: generator(0, "permute axes", draw, axis).permutation(size)
                for axis, size in axes.sizes.items()
            }
            if moved(units):
                return [axis for axis in units if moved({axis: units[axis]})] or list(units)
    return []


@contextlib.contextmanager
def _double() -> Iterator[None]:
    """Constants made in here have double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _as_double(value: Any) -> Any:
    """The same values in double precision, in nested containers too."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return {key: _as_double(item) for key, item in value.items()}
    return type(value)(map(_as_double, value)) if type(value) in (list, tuple) else value


def _lively(name: str, value: Tensor) -> Tensor:
    """Weights of the same kind, at which every unit matters and no two are alike."""
    if not value.is_floating_point() or value.numel() == 0 or value.layout is not torch.strided:
        return value
    if value.numel() == 1:
        return value if value.item() else torch.full_like(value, 0.5)
    random = torch.Generator().manual_seed(key(0, "verify", name) % 2**63)
    scale = math.sqrt(value.shape[0] / value.numel())
    if value.dim() > 1:
        size = value.float().square().mean().sqrt().item()
        if value.min() != value.max() and math.isfinite(size):
            return value * (scale / size)
        return (torch.randn(value.shape, generator=random) * scale).to(value)
    if value.min() != value.max():
        return value
    return (torch.rand(value.shape, generator=random) + (0.5 if value[0] else -0.5)).to(value)


@contextlib.contextmanager
def _swapped(weights: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Iterator[None]:
    """The module's own tensors hold other values in here."""
    own = [(tensor, tensor.data) for tensor in weights.values()]
    try:
        for name, tensor in weights.items():
            tensor.data = values[name].clone() if values[name] is tensor.data else values[name]
        yield
    finally:
        for tensor, data in own:
            tensor.data = data


def _permuted(
    values: Mapping[str, Tensor], axes: Axes, units: Mapping[str, Indices]
) -> dict[str, Tensor]:
    permuted = dict(values)
    for name, layouts in axes.layouts.items():
        for d, layout in enumerate(layouts):
            if any(axis in units for axis in layout.axes()):
                order = torch.from_numpy(layout.indices(units)).to(values[name].device)
                permuted[name] = permuted[name].index_select(d, order)
    return permuted


def _finite(results: list[Tensor]) -> bool:
    return all(bool(r.isfinite().any()) for r in results if r.numel())


def _differ(before: list[Tensor], after: list[Tensor], classes: Indices | None) -> bool:
    """Whether an output moved; the classes themselves move with their axis."""
    if len(before) != len(after):
        return True
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape:
            return True
        if classes is not None and old.dim() and old.shape[-1] == len(classes):
            old = old.index_select(-1, torch.from_numpy(classes).to(old.device))
        if not (old.is_floating_point() or old.is_complex()):
            if not torch.equal(old, new):
                return True
            continue
        finite = old.isfinite()
        if not torch.equal(finite, new.isfinite()):
            return True
        gap, scale = (new - old)[finite].abs(), old[finite].abs()
        if gap.numel() and gap.max() > TOLERANCE.get(old.dtype, 1e-4) * scale.max():
            return True
    return False


def _complaint(axes: Axes, axis: str) -> str:
    members = [
        f"{name}[{d}]"
        for name, layouts in axes.layouts.items()
        for d, layout in enumerate(layouts)
        if axis in layout.axes()
    ]
    return (
        f"axis {axis!r} ({', '.join(members)}): permuting its units moves the outputs, so these "
        "dimensions must not be cut together like this; freeze the axis, or report the model"
    )
