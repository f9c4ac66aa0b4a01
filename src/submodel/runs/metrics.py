"""The lines of a run, one per round: what a line holds, and what is left of a damaged file.

A kill may cut the last line short, which is no damage: the round is trained again. Anything else
that is not as it was written is said, and the run goes on without it; the model does not depend on
these lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from submodel.algorithm.tally import RoundReport
from submodel.files import UnreadableError, parse_json

Metrics = dict[str, Any]
_LONGEST = 2**23  # bytes of a line; a round of ten thousand devices has two million
_MOST_SAID = 5


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping)


def _holds_numbers(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_number, value.values()))


_NEEDED: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("train_loss", "bytes_down", "bytes_up", "flops"), _is_number),
    **dict.fromkeys(("coverage", "seconds"), _holds_numbers),
    "refused": _is_table,
}
_POSSIBLE: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(
        ("test_loss", "test_accuracy", "train_eval_loss", "train_eval_accuracy"), _is_number
    ),
    **dict.fromkeys(("capacity_accuracy", "capacity_loss", "observed"), _holds_numbers),
    "missing": _is_table,
}

SCORES = (
    *("test_loss", "test_accuracy", "train_eval_loss", "train_eval_accuracy"),
    *("capacity_accuracy", "capacity_loss"),  # the latter where accuracy is not defined
)
"""What an evaluation may add to a round's line."""
_SUMMARISED = ("name", "rounds", "model_sha256", "rounds_lost")
RESERVED = frozenset((*_NEEDED, *_POSSIBLE, "round", "clients", "devices", *_SUMMARISED))
"""What lines and summaries call their own entries; nobody else may."""


def line_of(round_: int, report: RoundReport) -> Metrics:
    """What is written of a round, before anything is added to it."""
    return {
        "round": round_,
        "train_loss": report.train_loss,
        "clients": report.clients,
        "refused": report.refused,
        **({"missing": report.missing} if report.missing else {}),
        "coverage": {"units": report.units_covered, "weights": report.weights_covered},
        "bytes_down": report.bytes_down,
        "bytes_up": report.bytes_up,
        "flops": report.flops,
        "seconds": {phase: round(s, 6) for phase, s in report.seconds.items()},
        **({"observed": report.observed} if report.observed else {}),
    }


def with_entries(line: Metrics, entries: Mapping[str, Any]) -> Metrics:
    """A line with more entries; those of a table that it has are added to the table.

    >>> with_entries({"round": 1, "seconds": {"train": 2.0}}, {"seconds": {"evaluate": 1.0}})
    {'round': 1, 'seconds': {'train': 2.0, 'evaluate': 1.0}}
    """
    tables = {
        key: {**line[key], **value}
        for key, value in entries.items()
        if isinstance(value, Mapping) and isinstance(line.get(key), Mapping)
    }
    return {**line, **entries, **tables}


def is_line(value: object) -> bool:
    """Whether a value is a round's line, with all that those who read it rely on.

    >>> is_line({"round": 1, "train_loss": 0.5})
    False
    """
    if not isinstance(value, dict) or type(value.get("round")) is not int or value["round"] < 1:
        return False
    needed = all(key in value and holds(value[key]) for key, holds in _NEEDED.items())
    possible = all(holds(value[key]) for key, holds in _POSSIBLE.items() if key in value)
    return needed and possible and {"units", "weights"} <= value["coverage"].keys()


@dataclass(frozen=True)
class Lines:
    """What a file of lines holds: one per round, ascending, and what else stands there."""

    kept: Sequence[Metrics]
    damage: Sequence[str]

    @classmethod
    def read(cls, path: Path) -> Lines:
        """Those of a file; there need not be one."""
        found: dict[int, Metrics] = {}
        damage: list[str] = []
        for number, text in enumerate(_texts(path), start=1):
            try:
                line = parse_json(text)
            except UnreadableError:
                line = None
            if not is_line(line):
                if text.endswith(b"\n") or len(text) == _LONGEST:
                    damage.append(f"line {number} is not that of a round")
            elif found.setdefault(line["round"], line) is not line:
                damage.append(f"line {number} is another one of round {line['round']}")
        return cls([found[round_] for round_ in sorted(found)], damage)

    def until(self, rounds: int) -> Lines:
        """The lines of the first so many rounds."""
        return Lines([line for line in self.kept if line["round"] <= rounds], self.damage)

    def lost(self, rounds: int) -> list[tuple[int, int]]:
        """The stretches, first and last, of the first so many rounds that have no line."""
        there = [0, *(line["round"] for line in self.kept if line["round"] <= rounds), rounds + 1]
        return [(a + 1, b - 1) for a, b in pairwise(there) if b - a > 1]

    def text(self) -> str:
        """What a file of these lines holds."""
        return "".join(json.dumps(line) + "\n" for line in self.kept)


def _texts(path: Path) -> Iterator[bytes]:
    """The lines of a file; one longer than any of ours comes in pieces."""
    try:
        with path.open("rb") as file:
            while text := file.readline(_LONGEST):
                yield text
    except OSError:
        return


def said(damage: Sequence[str], lost: Sequence[tuple[int, int]]) -> str:
    """What is wrong with a run's lines, for people.

    >>> said(["line 3 is not that of a round"], [(3, 3), (7, 9)])
    'line 3 is not that of a round; no line is left of rounds 3, 7 to 9'
    """
    parts = list(damage[:_MOST_SAID])
    if len(damage) > _MOST_SAID:
        parts.append(f"likewise {len(damage) - _MOST_SAID} more")
    if lost:
        spans = [f"{a}" if a == b else f"{a} to {b}" for a, b in lost[:_MOST_SAID]]
        if len(lost) > _MOST_SAID:
            spans.append(f"and {len(lost) - _MOST_SAID} more stretches")
        parts.append(f"no line is left of rounds {', '.join(spans)}")
    return "; ".join(parts)
