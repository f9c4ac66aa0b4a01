"""Measurement of whether a sub-model is the masked model.

Sub-models of random cuts are built and compared with the full model whose dropped units are zeroed.
If an axis is exact by its operators but the outputs differ, it is not exact: its size has entered
the arithmetic in another way. Then the kept units of a sub-model are reordered, which must not
change its outputs; a change shows a misaligned cut and is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from submodel.core.randomness import generator, seeded
from submodel.model.axes.declare import Axes, units_held
from submodel.model.axes.keep import temporary_copy
from submodel.model.axes.verify import (
    TOLERANCE,
    AxesError,
    Example,
    Trial,
    axis_problem,
    distance,
    double,
    exchange,
)
from submodel.model.build import build_module
from submodel.model.build.module import settle_spectral_norms
from submodel.model.cut import UnitCut, copy_part

CAPACITIES = (0.5, 0.25)
"""Default capacities to measure."""

CLOSE = {torch.float64: 1e-9, torch.float32: 1e-5}
"""Larger differences are checked again in double precision."""


class NotMeasuredError(Exception):
    """Raised if a sub-model cannot be built or run; building it later raises the error again."""


def measure(
    examples: Sequence[Example],
    axes: Axes,
    capacities: Iterable[float] = CAPACITIES,
    least: Mapping[str, float] = MappingProxyType({}),
) -> Axes:
    """The axes with the results of measuring sub-models of these capacities on the examples.

    Every capacity is measured at the sizes that it holds. Before that, units are drawn one by one
    at the first capacity, which gives different fractions of every axis, unless a layer forbids it.

    Raises `AxesError` if a sub-model depends on the order of its kept units.

    >>> from submodel.model.axes import trace
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    >>> axes = trace(net, torch.ones(1, 4), verify=False)
    >>> measure([Example(net, torch.ones(1, 4))], axes).measured
    (0.5, 0.25)
    """
    capacities = tuple(capacities)
    if not capacities:
        return axes
    done_capacities: list[float] = []
    doubts: list[str] = []
    is_reordered = False
    draws = [(0, True), *((number, False) for number in range(len(capacities)))]
    for number, singly in draws if axes.cut_by_capacity else ():
        capacity = capacities[number]
        cut = _random_cut(axes, capacity, number, None if singly else least)
        try:
            with torch.no_grad(), seeded(None):
                notes_of_examples = [_compare(e, cut, capacity, not is_reordered) for e in examples]
        except NotMeasuredError as problem:
            if singly:
                note = f"unequal fractions of axes, as by Bernoulli draws: {problem}"
                axes = replace(axes, notes=(*axes.notes, note))
            else:
                doubts.append(f"at capacity {capacity:g}: {problem}")
            continue
        is_reordered = True
        for notes in notes_of_examples:
            axes = replace(axes, inexact={**axes.inexact, **notes})
        done_capacities += [] if singly else [capacity]
    unsure = bool(axes.cut_by_capacity) and not done_capacities
    return replace(axes, measured=tuple(done_capacities), doubt="; ".join(doubts) if unsure else "")


def _random_cut(
    axes: Axes, capacity: float, number: int, least: Mapping[str, float] | None
) -> UnitCut:
    """Random units of every axis: of the held number, or each with the capacity as probability."""
    units = {}
    for axis, size in axes.cut_by_capacity.items():
        rng = generator(0, "mask", number, 0, axis)
        if least is None:
            kept_units = np.flatnonzero(rng.random(size) < capacity)
        else:
            count = units_held(max(capacity, least.get(axis, 0.0)), size)
            kept_units = np.sort(rng.choice(size, count, replace=False))
        if not len(kept_units):
            kept_units = generator(0, "spare", number, 0, axis).integers(size, size=1)
        if len(kept_units) < size:
            units[axis] = kept_units
    return UnitCut(axes, units)


def _compare(
    example: Example, cut: UnitCut, capacity: float, reorder: bool
) -> dict[str, tuple[str, ...]]:
    """The cut axes that are not exact on one example, with messages."""
    subs = Subs(example)
    exact = [axis for axis in cut.units if axis not in cut.axes.inexact]
    words = f"measured at capacity {capacity:g}: the sub-model is not the masked model, by"
    inexact_axes: dict[str, tuple[str, ...]] = {
        axis: (f"{words} {gap:.1g} of the largest output",)
        for axis, gap in subs.faulty_axes(_only(cut, exact), Sub.from_masked).items()
    }
    if reorder and (faulty_axes := subs.faulty_axes(cut, Sub.from_reordered)):
        where = f" in a sub-model of capacity {capacity:g}"
        raise AxesError("\n".join(axis_problem(cut.axes, axis, where) for axis in faulty_axes))
    return inexact_axes


class Sub:
    """The sub-model of a cut with the values of a trial, and its outputs."""

    def __init__(self, trial: Trial, cut: UnitCut) -> None:
        self.trial, self.cut = trial, cut
        try:
            with trial.with_values(trial.values) as running:
                self.module = build_module(running, cut)
        except Exception as problem:  # copying may raise any exception
            raise NotMeasuredError(f"no sub-model could be built: {problem}") from problem
        self.outputs = self._run()

    def _run(self) -> list[Tensor]:
        try:
            with temporary_copy(self.module) as running:
                return self.trial.results(running)
        except Exception as problem:  # the user's code may raise any exception
            raise NotMeasuredError(f"the sub-model does not run: {problem}") from problem

    def from_masked(self) -> float:
        """The distance of its outputs from those of the full model with all other units zeroed."""

        def masked(name: str) -> Tensor:
            value, entries = self.trial.values(name), self.cut.plan.get(name, ())
            masked_value = value.clone() if entries else value
            for d, kept_positions in entries:
                dropped_positions = np.setdiff1d(np.arange(value.shape[d]), kept_positions)
                places = torch.from_numpy(dropped_positions).to(value.device)
                masked_value.index_fill_(d, places, 0)
            return masked_value

        return distance(self.trial.forward(masked), self.outputs)

    def from_reordered(self) -> float:
        """The distance between its outputs before and after reordering the kept units."""
        order = {
            axis: generator(0, "permute kept units", axis).permutation(kept_units)
            for axis, kept_units in self.cut.units.items()
        }
        other = UnitCut(self.cut.axes, order)
        tensors = dict([*self.module.named_parameters(), *self.module.named_buffers()])

        def reordered(name: str) -> Tensor:
            return copy_part(other, name, self.trial.values(name))

        with exchange(tensors, reordered, tensors.values()):
            settle_spectral_norms(self.module)
            return distance(self.outputs, self._run())


class Subs:
    """Sub-models on one example, in double precision where rounding may matter."""

    def __init__(self, example: Example) -> None:
        self._example = example
        self._last: Sub | None = None

    def faulty_axes(self, cut: UnitCut, compare: Callable[[Sub], float]) -> dict[str, float]:
        """The axes of a cut that cause a difference, by halving; all if only all together do."""
        gap = self._gap(cut, compare) if cut.units else 0.0
        if gap == 0 or len(cut.units) < 2:
            return dict.fromkeys(cut.units, gap) if gap else {}
        names = list(cut.units)
        gaps: dict[str, float] = {}
        for half in (names[: len(names) // 2], names[len(names) // 2 :]):
            with contextlib.suppress(NotMeasuredError):
                gaps |= self.faulty_axes(_only(cut, half), compare)
        return gaps or dict.fromkeys(names, gap)

    def _gap(self, cut: UnitCut, compare: Callable[[Sub], float]) -> float:
        """The difference; zero if it is due to rounding."""
        before = self._example.plain.before
        kind = next((r.dtype for r in before if r.is_floating_point()), torch.float32)
        gap = compare(self._of(self._example.plain, cut))
        if gap <= CLOSE.get(kind, TOLERANCE.get(kind, 0)):
            return 0.0
        with contextlib.suppress(RuntimeError, NotMeasuredError), double():
            exactly = compare(self._of(self._example.double, cut))
            return exactly if exactly > TOLERANCE[torch.float64] else 0.0
        return gap if gap > TOLERANCE.get(kind, 1e-4) else 0.0

    def _of(self, trial: Trial, cut: UnitCut) -> Sub:
        if self._last is None or self._last.trial is not trial or self._last.cut is not cut:
            self._last = Sub(trial, cut)
        return self._last


def _only(cut: UnitCut, axes: Collection[str]) -> UnitCut:
    """The cut restricted to some axes."""
    if len(axes) == len(cut.units):
        return cut
    return UnitCut(cut.axes, {axis: cut.units[axis] for axis in cut.units if axis in axes})
