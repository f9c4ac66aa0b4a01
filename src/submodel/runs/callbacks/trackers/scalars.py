"""What trackers of other makers can show of a line: its numbers, by their path."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from submodel.runs.metrics import Metrics


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a line, those of tables as ``table/entry``; the refused are counted.

    Args:
        line: of a round, or a table in one.

    >>> scalars({"round": 3, "test_loss": 0.5, "seconds": {"train": 2.0}, "refused": {"7": "late"}})
    {'test_loss': 0.5, 'seconds/train': 2.0, 'refused': 1.0}
    """
    numbers: dict[str, float] = {}
    for key, value in line.items():
        if key in ("refused", "missing") and isinstance(value, Mapping):
            numbers[key] = float(len(value))
        elif isinstance(value, Mapping):
            numbers |= {f"{key}/{name}": number for name, number in scalars(value).items()}
        elif key != "round" and _is_number(value):
            numbers[key] = float(value)
    return numbers


def times(history: Sequence[Metrics], now: float) -> list[float]:
    """When each round ended, had the run never stopped: by the seconds that rounds took.

    Args:
        history: the lines of the rounds so far.
        now: when the last of them ended.

    >>> times([{"seconds": {"train": 2.0}}, {"seconds": {"train": 3.0, "merge": 1.0}}], 100.0)
    [96.0, 100.0]
    """
    moments = [now]
    for line in reversed(history[1:]):
        moments.append(moments[-1] - sum(line["seconds"].values()))
    return moments[::-1][: len(history)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
