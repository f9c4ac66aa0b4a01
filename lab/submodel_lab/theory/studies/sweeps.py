"""What studies share: sweeps along a parameter beside their bounds, and checked settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from submodel_lab.theory.masking import Masking
from submodel_lab.theory.measures import Measure, Statement, judge_slope, slope, slope_measure
from submodel_lab.theory.problems import TheoryError
from submodel_lab.theory.theorems import BoundTerms, StepSize, stated_slope

_SHARES = ("capacities", "sweep_capacities", "controls", "p")
_MAY_BE_ZERO = ("seed", "noise", "heterogeneity", "heterogeneities", "l2")


def slope_statement(
    source: str,
    parameter: str,
    case: str,
    quantity: str,
    x: Sequence[float],
    measures: Sequence[Measure],
    limit: float | Sequence[BoundTerms],
    conditions: str = "met",
    speaks: bool = True,
    every: bool = False,
) -> Statement:
    """A number falls along a parameter at least as fast as its bound does, or grows no faster."""
    values = [m.values for m in measures if m.values is not None]
    exact = [m.exact for m in measures if m.exact is not None]
    if len(values) == len(measures):
        measure = slope_measure(x, values, exact if len(exact) == len(measures) else None)
    else:  # nothing was drawn: the numbers are exact
        number = slope(x, [m.mean for m in measures])
        measure = Measure(number, number, number, number)
    limit_slope = limit if isinstance(limit, float) else stated_slope(x, limit, every)
    verdict = judge_slope(measure, limit_slope, speaks)
    text = f"slope of {quantity}"
    return Statement(source, parameter, case, text, measure, "<=",
                     limit_slope if speaks else None, verdict, conditions)  # fmt: skip


def worst_condition(steps: Sequence[StepSize]) -> str:
    """The conditions over a sweep: met, or what is not, where least is.

    >>> worst_condition([StepSize(0.1), StepSize(0.1, ("R >= 5",))])
    'not met at 1 of 2: R >= 5'
    """
    unmet = [step for step in steps if step.unmet]
    if not unmet:
        return "met"
    return f"not met at {len(unmet)} of {len(steps)}: {'; '.join(unmet[-1].unmet)}"


def mean_share(masking: Masking, dimension: int) -> float:
    """What share of the coordinates a client really holds: windows are whole coordinates.

    >>> from submodel_lab.theory import rolling
    >>> mean_share(rolling(0.75, 4, 10), 10)
    0.8
    """
    return round(float(masking.law(dimension).moments[0].mean()), 12)


def check_settings(settings: Any) -> None:
    """Refuse counts below 1, shares outside (0, 1], numbers that are none, and empty lists.

    >>> from submodel_lab.theory.studies import STUDIES
    >>> check_settings(STUDIES["residual"].default_settings())
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == ():
            raise TheoryError(f"{field.name}: at least one is needed")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float):
                _check_number(field.name, number)
    if getattr(settings, "trials", 2) < 2:
        raise TheoryError(f"trials = {settings.trials}: at least 2 are needed for an interval")
    mu, smoothness = (getattr(settings, name, math.nan) for name in ("mu", "smoothness"))
    if mu > smoothness:
        raise TheoryError(f"mu = {mu:g} is above smoothness = {smoothness:g}: mu <= L is needed")


def _check_number(name: str, number: float) -> None:
    if not math.isfinite(number):
        raise TheoryError(f"{name} = {number}: a finite number is needed")
    if name in _SHARES and not 0 < number <= 1:
        raise TheoryError(f"{name}: p = {number:g} is not in (0, 1]: a client must hold something")
    if name in ("dimension", "dimensions") and number < 2:
        raise TheoryError(f"{name} = {number}: masks need at least 2 coordinates")
    if name == "mu" and number <= 0:
        raise TheoryError(f"mu = {number:g}: a strongly convex problem has mu above 0")
    if number < 0 or (number == 0 and name not in _MAY_BE_ZERO):
        least = "0 or more" if name in _MAY_BE_ZERO else "1 or more"
        kind = least if isinstance(number, int) else least.replace("1 or more", "more than 0")
        raise TheoryError(f"{name} = {number:g}: {kind} is needed")
