"""Sweeps of studies along a parameter with their bounds, and checks of settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from submodel_lab.theory.drawing import PlotLine
from submodel_lab.theory.masking import Masking, bernoulli, rolling
from submodel_lab.theory.measures import Measure, Statement, judge_slope, slope, slope_measure
from submodel_lab.theory.problems import TheoryError
from submodel_lab.theory.results import OnProgress
from submodel_lab.theory.theorems import BoundTerms, StepSize, stated_slope

_SHARES = ("capacities", "sweep_capacities", "controls", "p")
_MAY_BE_ZERO = ("seed", "noise", "heterogeneity", "heterogeneities", "l2")


@dataclass(frozen=True)
class MaskedCase:
    """A run of a study: its masks, rounds and local steps."""

    s: Any  # settings of the study, with a dimension
    p: float
    rounds: int
    steps: int
    clients: int
    rolls: bool = field(default=False, kw_only=True)
    theorems: ClassVar[tuple[str, str]]  # of random and of rolling masks

    @property
    def masking(self) -> Masking:
        """Masking of the coordinates."""
        if self.rolls:
            return rolling(self.p, self.clients, self.s.dimension)
        return bernoulli(self.p, self.clients)

    @property
    def share(self) -> float:
        """Share of the coordinates that a client holds."""
        return mean_share(self.masking, self.s.dimension)

    @property
    def source(self) -> str:
        """Name of the theorem about this case, or "" if there is none."""
        return self.theorems[self.rolls]

    @property
    def scheme(self) -> str:
        """Name of the scheme."""
        return "rolling" if self.rolls else "random"

    @property
    def words(self) -> str:
        """Description of the masks by the held share."""
        return f"rolling, s/d={self.share:g}" if self.rolls else f"random, p={self.p:g}"


class SweepPoint(Protocol):
    """Part of a case's result that a statement on its bound needs."""

    @property
    def step(self) -> StepSize:
        """Step size with unmet conditions of the theorem."""

    @property
    def ceiling(self) -> BoundTerms:
        """Bound of the theorem."""


C = TypeVar("C", bound=MaskedCase)
P = TypeVar("P", bound=SweepPoint)


@dataclass(frozen=True)
class Sweep(Generic[C]):
    """Cases along one parameter."""

    parameter: str
    x: Sequence[float]
    cases: Sequence[C]
    label: str
    every: bool = False  # whether every term of the bound counts, not only leading ones

    @classmethod
    def along(
        cls,
        parameter: str,
        base: C,
        name: str,
        values: Sequence[Any],
        label: str,
        x: Sequence[float] | None = None,
    ) -> Sweep[C]:
        """Vary a field of a case; ``x`` defaults to the values."""
        cases = [replace(base, **{name: value}) for value in values]
        return cls(parameter, values if x is None else x, cases, label)

    def statement(
        self,
        points: Mapping[C, P],
        quantity: str,
        read: Callable[[P], Measure],
        is_stated: bool = True,
        last: int = 0,
    ) -> Statement:
        """Judge whether a number changes along the parameter as the theorem's bound does.

        ``last`` selects a number of last cases only.
        """
        run = [points[case] for case in self.cases[-last:]]
        label = self.label
        if last:
            label += f", {self.parameter}={self.x[-last]} and up"
        return slope_statement(
            self.cases[0].source, self.parameter, label, quantity, self.x[-last:],
            [read(point) for point in run], [point.ceiling for point in run],
            worst_condition([point.step for point in run]), is_stated, self.every,
        )  # fmt: skip

    def line(self, points: Mapping[C, P], read: Callable[[P], Measure]) -> PlotLine:
        """Return the curve of a number along the parameter."""
        return PlotLine.of_measures(self.label, self.x, [read(points[c]) for c in self.cases])


def run_cases(
    cases: Iterable[C],
    measure: Callable[[C], P],
    on_progress: OnProgress,
    weigh: Callable[[C], int] = lambda _: 1,
    beyond: int = 0,
) -> dict[C, P]:
    """Measure every case once; ``weigh`` gives its steps, ``beyond`` the steps after all cases."""
    points: dict[C, P] = {}
    distinct = list(dict.fromkeys(cases))
    done, total = 0, sum(map(weigh, distinct)) + beyond
    for case in distinct:
        points[case] = measure(case)
        done += weigh(case)
        on_progress(done, total)
    return points


def slope_statement(
    source: str,
    parameter: str,
    case: str,
    quantity: str,
    x: Sequence[float],
    measures: Sequence[Measure],
    limit: float | Sequence[BoundTerms],
    conditions: str = "met",
    is_stated: bool = True,
    every: bool = False,
) -> Statement:
    """Judge whether a number falls along a parameter at least as fast as its bound.

    The limit is the bound at each x, or the stated slope.
    """
    values = [m.values for m in measures if m.values is not None]
    exact = [m.exact for m in measures if m.exact is not None]
    if len(values) == len(measures):
        measure = slope_measure(x, values, exact if len(exact) == len(measures) else None)
    else:  # the numbers are exact
        number = slope(x, [m.mean for m in measures])
        measure = Measure(number, number, number, number)
    limit_slope = limit if isinstance(limit, float) else stated_slope(x, limit, every)
    verdict = judge_slope(measure, limit_slope, is_stated)
    text = f"slope of {quantity}"
    return Statement(source, parameter, case, text, measure, "<=",
                     limit_slope if is_stated else None, verdict, conditions)  # fmt: skip


def worst_condition(steps: Sequence[StepSize]) -> str:
    """Describe the conditions over a sweep: met, or those that are unmet at the last point.

    >>> worst_condition([StepSize(0.1), StepSize(0.1, ("R >= 5",))])
    'not met at 1 of 2: R >= 5'
    """
    unmet = [step for step in steps if step.unmet]
    if not unmet:
        return "met"
    return f"not met at {len(unmet)} of {len(steps)}: {'; '.join(unmet[-1].unmet)}"


def mean_share(masking: Masking, dimension: int) -> float:
    """Return the share of coordinates that a client holds; windows are whole coordinates.

    >>> from submodel_lab.theory import rolling
    >>> mean_share(rolling(0.75, 4, 10), 10)
    0.8
    """
    return round(float(masking.law(dimension).moments[0].mean()), 12)


def check_settings(settings: Any) -> None:
    """Raise an error for counts below 1, shares outside (0, 1], NaN, infinity and empty lists.

    >>> from submodel_lab.theory.studies import STUDIES
    >>> check_settings(STUDIES["residual"].default_settings())
    """
    for name in (one.name for one in fields(settings)):
        value = getattr(settings, name)
        if value == ():
            raise TheoryError(f"{name}: at least one is needed")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float):
                _check_number(name, number)
    if getattr(settings, "trials", 2) < 2:
        raise TheoryError(f"trials = {settings.trials}: at least 2 are needed for an interval")
    mu, smoothness = (getattr(settings, name, math.nan) for name in ("mu", "smoothness"))
    if mu > smoothness:
        raise TheoryError(f"mu = {mu:g} is above smoothness = {smoothness:g}: mu <= L is needed")


def _check_number(name: str, number: float) -> None:
    if not math.isfinite(number):
        raise TheoryError(f"{name} = {number}: a finite number is needed")
    if name in _SHARES and not 0 < number <= 1:
        raise TheoryError(f"{name}: p = {number:g} is not in (0, 1]; every client holds something")
    if name in ("dimension", "dimensions") and number < 2:
        raise TheoryError(f"{name} = {number}: masks need at least 2 coordinates")
    if name == "mu" and number <= 0:
        raise TheoryError(f"mu = {number:g}: a strongly convex problem has mu above 0")
    if number < 0 or (number == 0 and name not in _MAY_BE_ZERO):
        least = "0 or more" if name in _MAY_BE_ZERO else "1 or more"
        kind = least if isinstance(number, int) else least.replace("1 or more", "more than 0")
        raise TheoryError(f"{name} = {number:g}: {kind} is needed")
