"""How a number moves along a parameter, beside how its bound moves: one claim of any study."""

from __future__ import annotations

from collections.abc import Sequence

from submodel_lab.theory.bounds import BoundTerms, stated_slope
from submodel_lab.theory.masking import Masking
from submodel_lab.theory.measures import Measure, slope, slope_measure
from submodel_lab.theory.theorems import StepSize
from submodel_lab.theory.verdicts import Statement, judge_slope


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
    """A number falls along a parameter at least as fast as its bound does, or grows no faster.

    Args:
        source: Which theorem says so.
        parameter: Along what.
        case: The other parameters, in words.
        quantity: What falls.
        x: The values of the parameter.
        measures: The number at each of them.
        limit: The bound at each of them, or the slope that is stated.
        conditions: Whether the theorem's are met.
        speaks: Whether there is a theorem for the case.
        every: Whether every term of the bound counts, not only those that lead.
    """
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

    Args:
        steps: The step size of every run, with what of its theorem's conditions is not met.

    >>> worst_condition([StepSize(0.1), StepSize(0.1, ("R >= 5",))])
    'not met at 1 of 2: R >= 5'
    """
    unmet = [step for step in steps if step.unmet]
    if not unmet:
        return "met"
    return f"not met at {len(unmet)} of {len(steps)}: {'; '.join(unmet[-1].unmet)}"


def mean_share(masking: Masking, dimension: int) -> float:
    """What share of the coordinates a client really holds: windows are whole coordinates.

    Args:
        masking: The masks.
        dimension: Of how many coordinates.

    >>> from submodel_lab.theory import rolling
    >>> mean_share(rolling(0.75, 4, 10), 10)
    0.8
    """
    return round(float(masking.law(dimension).moments[0].mean()), 12)
