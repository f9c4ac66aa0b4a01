"""Measured values, tests and verdicts as the tables of all experiments word them."""

from __future__ import annotations

from collections.abc import Sequence

from submodel.experiments.statistics import LEAST_SEEDS, LEVEL, Judgement, least_ratio, spread

PLUS_MINUS = "± is the standard deviation over seeds."
"""What follows the sign in every table and text; intervals stand in square brackets."""
JUDGEMENT_HEADINGS = ("95 % interval", "p (Holm)")
"""The headings of what `describe_judgement` says."""
_PERCENT = ("accuracy", "train accuracy", "accuracy gap", "held-out accuracy", "mean over sizes",
            "smallest size", "worst quarter", "accuracy by test batches")  # fmt: skip


def number(measure: str, values: Sequence[float], sign: bool = False) -> str:
    """Mean and, of several seeds, ± standard deviation.

    Args:
        measure: What was measured: accuracies are shown in percent.
        values: A value for each seed.
        sign: Whether it is a difference: with its sign, accuracies in points.

    >>> number("accuracy", [0.41, 0.43]), number("loss", [1.5])
    ('42.0 % ± 1.4', '1.5000')
    """
    mean, deviation = spread(values)
    mark = "+" if sign else ""
    several = len(values) > 1
    if measure in _PERCENT:
        text = f"{100 * mean:{mark}.1f}{' points' if sign else ' %'}"
        return f"{text} ± {100 * deviation:.1f}" if several else text
    return f"{mean:{mark}.4f}" + (f" ± {deviation:.4f}" if several else "")


def counted(count: int, one: str, several: str) -> str:
    """A count and what it counts.

    Args:
        count: how many.
        one: what is said of one.
        several: what is said of none or several.

    >>> counted(1, "run", "runs"), counted(0, "run", "runs")
    ('1 run', '0 runs')
    """
    return f"{count} {one if count == 1 else several}"


def describe_judgement(measure: str, judgement: Judgement, flip_sign: bool = False) -> list[str]:
    """The interval and the p-value; empty where nothing was tested.

    Args:
        measure: What was measured.
        judgement: What was found.
        flip_sign: Whether the difference is shown with its sign turned.

    >>> describe_judgement("accuracy", Judgement([0.1] * 3, (0.05, 0.15), 0.0314, "holds"))
    ['[+5.0, +15.0]', '0.031']
    """
    if judgement.interval is None or judgement.p is None:
        return ["", ""]
    low, high = judgement.interval
    ends = (-high, -low) if flip_sign else (low, high)
    if measure in _PERCENT:
        interval = ", ".join(f"{100 * end:+.1f}" for end in ends)
    else:
        interval = ", ".join(f"{end:+.4f}" for end in ends)
    return [f"[{interval}]", p_value(judgement.p)]


def p_value(value: float) -> str:
    """A p-value.

    >>> p_value(0.0314), p_value(0.00001)
    ('0.031', '< 0.001')
    """
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def how_to_read(seeds: int, tests: int) -> str:
    """What the verdicts of a table mean.

    Args:
        seeds: How many runs each of its ways has.
        tests: How many of its differences were judged.

    >>> how_to_read(2, 5)
    'Nothing was tested: 2 seeds are fewer than 3, too few to tell from chance. ± is the ...'
    """
    last = f" {PLUS_MINUS}" if seeds > 1 else ""
    if tests == 0:
        return f"Nothing was tested: there is one way alone.{last}"
    if seeds < LEAST_SEEDS:
        few = "one seed is" if seeds == 1 else f"{seeds} seeds are"
        why = f"{few} fewer than {LEAST_SEEDS}, too few to tell from chance"
        return f"Nothing was tested: {why}.{last}"
    several = "tests" if tests > 1 else "test"
    return (
        f"'holds': a paired t-test over the {seeds} seeds finds p < {LEVEL:g}, corrected for "
        f"{tests} {several} (Holm); 'reversed': it finds so of the opposite. With few seeds "
        f"it has little power: here nothing counts before one of the differences is "
        f"{least_ratio(seeds, tests):.1f} times its own standard deviation over seeds, and "
        "'undecided' does not mean equal. An interval is that of the mean difference, each by "
        f"itself, not corrected.{last}"
    )
