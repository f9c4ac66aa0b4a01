"""Verification: permuting the units of every axis through all tensors must not move the outputs.

That holds exactly when dimensions are coupled as they should be, whatever the model computes with
them, so it checks axes that were traced as well as axes that were declared. It cannot tell that
more could be cut.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from submodel.errors import SubmodelError
from submodel.model.axes.declare import CLASSES, Axes
from submodel.model.axes.layout import Indices
from submodel.model.axes.trial import ChangedValues, Example, Outputs, Trial, distance, double
from submodel.model.inputs import Inputs
from submodel.randomness import generator

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


def verify(
    module: nn.Module,
    example_inputs: Inputs,
    axes: Axes,
    *,
    outputs: Outputs | None = None,
) -> None:
    """Raise `AxesError` unless the outputs stay put when all axes are permuted.

    The weights are replaced meanwhile by values of the scale that keeps signals alive: fresh layers
    of zeros or ones, or a branch that starts at a millionth, would hide a wrong coupling.

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
    """The same for an example that others use too."""
    if not axes.sizes:
        return
    guilty = _guilty(example.plain, axes)
    if guilty:  # some nets amplify rounding errors: look again before complaining
        with contextlib.suppress(RuntimeError), double():
            guilty = _guilty(example.double, axes)
    if guilty:
        raise AxesError("\n".join(complaint(axes, axis) for axis in guilty))


def _guilty(trial: Trial, axes: Axes) -> list[str]:
    """The axes that move the outputs on their own; all, if only all together do; or none."""
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


def _permute(
    values: Mapping[str, Tensor], axes: Axes, units: Mapping[str, Indices]
) -> Mapping[str, Tensor]:
    def permute(name: str, value: Tensor) -> Tensor:
        for d, layout in enumerate(axes.layouts.get(name, ())):
            if any(axis in units for axis in layout.axes()):
                order = torch.from_numpy(layout.indices(units)).to(value.device)
                value = value.index_select(d, order)
        return value

    return ChangedValues(values, permute)


def _differ(before: list[Tensor], after: list[Tensor], classes: Indices | None) -> bool:
    """Whether an output moved; the classes themselves move with their axis."""
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


def complaint(axes: Axes, axis: str, where: str = "") -> str:
    """Why an axis cannot be cut like this; ``where`` tells of which model."""
    members = [
        f"{name}[{d}]"
        for name, layouts in axes.layouts.items()
        for d, layout in enumerate(layouts)
        if axis in layout.axes()
    ]
    return (
        f"axis {axis!r} ({', '.join(members)}): permuting its units{where} moves the outputs, so "
        "these dimensions must not be cut together like this; freeze the axis, or report the model"
    )
