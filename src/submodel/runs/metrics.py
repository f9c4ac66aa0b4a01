"""Lines of metrics, one per round, and reading of damaged files.

A kill may truncate the last line, which is not damage: the round is trained again. Other damage is
reported, and the run continues without the damaged lines; the model does not depend on them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter
from pydantic_core import from_json
from typing_extensions import TypedDict

from submodel.core.files import JsonNumber, UnreadableError, bounded_lines, parse_typed

if TYPE_CHECKING:  # imports PyTorch, which reading lines does not need
    from submodel.algorithm.round_statistics import RoundReport

Metrics = dict[str, Any]
_LONGEST = 2**23  # bytes of a line; a round of ten thousand devices has two million
_MOST_SHOWN = 5


def _covers(value: dict[str, JsonNumber]) -> dict[str, JsonNumber]:
    if not {"units", "weights"} <= value.keys():
        raise ValueError("no units or weights")
    return value


class _Line(TypedDict):
    """Entries of a round's line that are read; there may be more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    round: Annotated[int, Field(ge=1)]
    train_loss: JsonNumber
    bytes_down: JsonNumber
    bytes_up: JsonNumber
    bytes_once: NotRequired[JsonNumber]
    flops: JsonNumber
    coverage: Annotated[dict[str, JsonNumber], AfterValidator(_covers)]
    seconds: dict[str, JsonNumber]
    refused: dict[str, Any]
    test_loss: NotRequired[JsonNumber]
    test_accuracy: NotRequired[JsonNumber]
    train_eval_loss: NotRequired[JsonNumber]
    train_eval_accuracy: NotRequired[JsonNumber]
    held_out_loss: NotRequired[JsonNumber]
    held_out_accuracy: NotRequired[JsonNumber]
    capacity_accuracy: NotRequired[dict[str, JsonNumber]]
    capacity_loss: NotRequired[dict[str, JsonNumber]]
    client_count: NotRequired[JsonNumber]
    client_accuracy: NotRequired[dict[str, Any]]
    client_loss: NotRequired[dict[str, Any]]
    observed: NotRequired[dict[str, JsonNumber]]
    missing: NotRequired[dict[str, Any]]


TEST_BATCH_KEY = "test_batch_accuracy"
"""Accuracy of the whole model with batch statistics of each test batch."""
_LINE: TypeAdapter[Any] = TypeAdapter(_Line)
_SUMMARY_NAMES = ("name", "rounds", "model_sha256", "rounds_lost")
RESERVED_NAMES = frozenset((*_Line.__annotations__, "clients", "devices", *_SUMMARY_NAMES))
"""Names of entries of lines and summaries that callbacks and metrics must not use."""


def round_line(round_: int, report: RoundReport) -> Metrics:
    """Make the line of a round, before callbacks add entries."""
    return {
        "round": round_,
        "train_loss": report.train_loss,
        "clients": report.clients,
        "refused": report.refusals,
        **({"missing": report.missing} if report.missing else {}),
        "coverage": {"units": report.units_covered, "weights": report.weights_covered},
        "bytes_down": report.bytes_down,
        "bytes_up": report.bytes_up,
        **({"bytes_once": report.bytes_once} if report.bytes_once else {}),
        "flops": report.flops,
        "seconds": {phase: round(s, 6) for phase, s in report.seconds.items()},
        **({"observed": report.observations} if report.observations else {}),
    }


def score_names(metrics: Iterable[str]) -> set[str]:
    """Return the entries that an evaluation may add to a line, for a task with these metrics.

    >>> "capacity_f1" in score_names(["f1"]), "capacity_f1" in score_names(["accuracy"])
    (True, False)
    """
    parts = ("test", "train_eval", "held_out", "capacity", "client")
    return {"client_count", *(f"{part}_{name}" for part in parts for name in ("loss", *metrics))}


def with_entries(line: Metrics, entries: Mapping[str, Any]) -> Metrics:
    """Add entries to a line; entries of a table that it already has extend the table.

    >>> with_entries({"round": 1, "seconds": {"train": 2.0}}, {"seconds": {"evaluate": 1.0}})
    {'round': 1, 'seconds': {'train': 2.0, 'evaluate': 1.0}}
    """
    tables = {
        key: {**line[key], **value}
        for key, value in entries.items()
        if isinstance(value, Mapping) and isinstance(line.get(key), Mapping)
    }
    return {**line, **entries, **tables}


def flat(line: Mapping[str, Any], separator: str = ".") -> Metrics:
    """Flatten a line to one row with paths as keys; refused and missing clients are also counted.

    >>> flat({"round": 1, "seconds": {"train": 2.0}, "refused": {"7": "too large"}})
    {'round': 1, 'seconds.train': 2.0, 'refused': 1, 'refused.7': 'too large'}
    """
    row: Metrics = {}
    for key, value in line.items():
        if not isinstance(value, Mapping):
            row[key] = value
            continue
        if key in ("refused", "missing"):
            row[key] = len(value)
        entries = flat(value, separator)
        row |= {f"{key}{separator}{name}": entry for name, entry in entries.items()}
    return row


def is_number(value: object) -> bool:
    """Whether a value of a file is a number within the range of floats.

    >>> is_number(7), is_number(True), is_number("7"), is_number(10**400)
    (True, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or abs(value) <= sys.float_info.max


@dataclass(frozen=True)
class Lines:
    """Content of a file of lines: one per round, ascending, and descriptions of its damage."""

    entries: Sequence[Metrics]
    damage: Sequence[str]

    @classmethod
    def read(cls, path: Path) -> Lines:
        """Read the lines of a file, which may be missing."""
        line_of_round: dict[int, Metrics] = {}
        damage: list[str] = []
        for number, text in enumerate(bounded_lines(path, _LONGEST), start=1):
            try:
                parse_typed(_LINE, text)
            except UnreadableError:
                if text.endswith(b"\n") or len(text) == _LONGEST:
                    damage.append(f"line {number} is not that of a round")
                continue
            line: Metrics = from_json(text)  # checked, with keys in the order of the file
            if line_of_round.setdefault(line["round"], line) is not line:
                damage.append(f"line {number} is another one of round {line['round']}")
        return cls([line_of_round[round_] for round_ in sorted(line_of_round)], damage)

    @property
    def rounds(self) -> int:
        """Last round with a line; 0 if there is none."""
        return int(self.entries[-1]["round"]) if self.entries else 0

    def until(self, rounds: int) -> Lines:
        """Return the lines of the first ``rounds`` rounds."""
        return Lines([line for line in self.entries if line["round"] <= rounds], self.damage)

    def gaps(self, rounds: int) -> list[tuple[int, int]]:
        """Return the first and last rounds of all gaps within the first ``rounds`` rounds."""
        there = [
            0,
            *(line["round"] for line in self.entries if line["round"] <= rounds),
            rounds + 1,
        ]
        return [(a + 1, b - 1) for a, b in pairwise(there) if b - a > 1]

    def text(self) -> str:
        """Format the content of a file with these lines."""
        return "".join(json.dumps(line) + "\n" for line in self.entries)


def describe_damage(damage: Sequence[str], gaps: Sequence[tuple[int, int]]) -> str:
    """Describe the damage of a run's lines.

    >>> describe_damage(["line 3 is not that of a round"], [(3, 3), (7, 9)])
    'line 3 is not that of a round; no line is left of rounds 3, 7 to 9'
    """
    parts = list(damage[:_MOST_SHOWN])
    if len(damage) > _MOST_SHOWN:
        parts.append(f"likewise {len(damage) - _MOST_SHOWN} more")
    if gaps:
        spans = [f"{a}" if a == b else f"{a} to {b}" for a, b in gaps[:_MOST_SHOWN]]
        if len(gaps) > _MOST_SHOWN:
            spans.append(f"and {len(gaps) - _MOST_SHOWN} more stretches")
        parts.append(f"no line is left of rounds {', '.join(spans)}")
    return "; ".join(parts)
