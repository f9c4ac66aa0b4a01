"""What figures are drawn from: one way to train, its runs by seed, their rounds as rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

from submodel.errors import SubmodelError
from submodel.presentation.bands import Curve
from submodel.presentation.labels import short_label
from submodel.report.grouping import WayKey
from submodel.runs.metrics import Metrics, flat
from submodel.runs.outline import is_number

Rounds = Sequence[Mapping[str, Any]]
"""The rows of one run: a line of its metrics each, flat, and what it had cost until then."""
_UNSET = "null"
_LARGEST = 1e100  # beyond that, matplotlib cannot place it


@dataclass(frozen=True)
class Series:
    """One way to train, by seeds."""

    label: str
    runs: Sequence[Rounds]

    def curves(self, cost: str, measure: str) -> list[Curve]:
        """Of every run: what it had cost, and the measure then; of rounds that have both.

        Args:
            cost: As round, bytes, flops or elapsed.
            measure: As test_accuracy.
        """
        curves: list[Curve] = []
        for rows in self.runs:
            scored_rows = [
                row for row in rows if is_drawable(row.get(cost)) and is_drawable(row.get(measure))
            ]
            if not scored_rows:
                name = f"{self.label}: " if self.label else ""
                missing = measure if any(cost in row for row in rows) else cost
                raise SubmodelError(f"{name}no round of a run has {missing!r}")
            pairs = [(float(row[cost]), float(row[measure])) for row in scored_rows]
            curves.append(([x for x, _ in pairs], [y for _, y in pairs]))
        return curves

    def has(self, measure: str) -> bool:
        """Whether a round of every run has it.

        Args:
            measure: As test_accuracy.
        """
        return all(any(measure in row for row in rows) for rows in self.runs)

    def finals(self, measure: str) -> list[float]:
        """Its last value in every run.

        Args:
            measure: As test_accuracy, bytes or round.
        """
        return [float(values[-1]) for _, values in self.curves("round", measure)]


def is_drawable(value: object) -> bool:
    """Whether it is a number, and not one so large that nothing can be drawn beside it.

    Args:
        value: Of a row.
    """
    return is_number(value) and not _LARGEST < abs(cast(float, value)) < math.inf


def rows_of_run(history: Sequence[Metrics]) -> list[dict[str, Any]]:
    """The lines of a run as rows with the bytes, FLOPs and seconds of all rounds until then.

    Args:
        history: Of ``metrics.jsonl``.

    >>> line = {"bytes_down": 1, "bytes_up": 2, "flops": 5, "seconds": {"train": 1.5}}
    >>> rows = rows_of_run([{"round": 1, **line}, {"round": 2, **line}])
    >>> rows[1]["bytes"], rows[1]["flops"], rows[1]["elapsed"], rows[1]["seconds.train"]
    (6, 10, 3.0, 1.5)
    """
    traffic = accumulate(line["bytes_down"] + line["bytes_up"] for line in history)
    work = accumulate(line["flops"] for line in history)
    seconds = accumulate(sum(line["seconds"].values()) for line in history)
    return [
        {**flat(line), "bytes": bytes_, "flops": flops, "elapsed": time}
        for line, bytes_, flops, time in zip(history, traffic, work, seconds, strict=True)
    ]


def labels_of(ways: Sequence[WayKey]) -> list[str]:
    """Names for ways to train, from what differs between them; one way needs none.

    Args:
        ways: All of them, of `way_of`.

    >>> schemes = ({"name": "rolling", "order": "shuffled"}, {"name": "static"})
    >>> labels_of([tuple((f"scheme.{k}", v) for k, v in scheme.items()) for scheme in schemes])
    ['rolling', 'static']
    """
    tables = [dict(way) for way in ways]
    keys = dict.fromkeys(key for table in tables for key in table)
    values = {key: {table.get(key, _UNSET) for table in tables} for key in keys}
    every = sorted((k for k in keys if len(values[k]) > 1), key=lambda k: k != "scheme.name")
    labels = [
        _label(table, [k for k in every if len(values[k] - {_UNSET}) > 1]) for table in tables
    ]
    if len(set(labels)) == len(labels):  # without keys that only some have, as a scheme's own
        return labels
    return [_label(table, every) for table in tables]


def _label(table: Mapping[str, str], keys: Sequence[str]) -> str:
    words = [
        table[key] if key == "scheme.name" else f"{key} = {table[key]}".replace('"', "")
        for key in keys
        if table.get(key, _UNSET) != _UNSET
    ]
    if words and " = " in words[0]:
        return short_label(f"_, {', '.join(words)}").removeprefix("_, ")
    return short_label(", ".join(words))
