"""The evidence that advice rests on: contrasts seed by seed, and where each was measured.

It is a file of the package. `make results` writes it from the records in results/, and a test
holds both equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from submodel.comparison import Judgement, judge
from submodel.core import read_typed, write_text

_MOST = 2**24  # bytes of it


EVIDENCE_FILE = Path(__file__).with_name("evidence.json")
"""Where the package has it."""


@dataclass(frozen=True)
class TriedWay:
    """A way to train that was tried."""

    title: str  # its name in tables
    settings: Sequence[str]  # what it sets, as ``key=value``
    # why no fleet of mixed capacities would run it; empty: it may be recommended
    reference: str = ""
    afterwards: str = ""  # a command that follows the run; empty: none


@dataclass(frozen=True)
class Circumstances:
    """Where ways were tried."""

    title: str  # in tables
    data: str  # the name of the dataset
    model: str  # the name of the model
    labels: int | None  # how many labels a client has; None: not dealt out by labels
    capacities: Sequence[tuple[float, float]]  # (capacity, share of the clients), the largest first
    rounds: tuple[int, int]  # the least and the most that a way had
    is_converged: bool  # whether runs went on until they were flat, or to a stated end
    budget: str  # what both ways of a contrast had the same amount of


@dataclass(frozen=True)
class TriedContrast:
    """One way minus another by a measure, seed by seed; positive: in favour of the first."""

    setting: str  # where, by key
    better: str  # a way, by key
    worse: str  # another
    measure: str  # what is compared
    differences: Sequence[float]  # seed by seed
    is_choice: bool = True  # whether a fleet could run either, in the same circumstances
    rising_runs: int = 0  # how many of the runs to the end were not flat when they ended


@dataclass(frozen=True)
class Family:
    """Contrasts that are judged together, and where their records are."""

    name: str
    source: str
    contrasts: Sequence[TriedContrast]
    is_best_chosen: bool = False  # the first way of each was the best of these very runs

    @cached_property
    def judgements(self) -> list[Judgement]:
        """What each contrast amounts to, corrected for the number of all."""
        return judge([contrast.differences for contrast in self.contrasts])


@dataclass(frozen=True)
class Evidence:
    """All that was measured: ways and circumstances by key, contrasts by family."""

    ways: Mapping[str, TriedWay]  # by key
    settings: Mapping[str, Circumstances]  # circumstances, by key
    families: Annotated[Sequence[Family], Field(min_length=1)]  # of contrasts
    # by setting and way, the learning rate that held-out data chose
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """As JSON, a line for each thing that was measured."""
        plain = asdict(self)
        parts = [
            *(_table(key, plain[key]) for key in ("ways", "settings", "rates")),
            ' "families": [\n' + ",\n".join(map(_family, plain["families"])) + "\n ]",
        ]
        write_text(path, "{\n" + ",\n".join(parts) + "\n}\n")


def _table(key: str, values: Mapping[str, object]) -> str:
    lines = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in values.items()
    )
    return f' "{key}": {{\n{lines}\n }}'


def _family(plain: Mapping[str, Any]) -> str:
    heading = json.dumps({key: value for key, value in plain.items() if key != "contrasts"})
    lines = ",\n".join(f"   {json.dumps(contrast)}" for contrast in plain["contrasts"])
    return f'  {heading[:-1]}, "contrasts": [\n{lines}\n  ]}}'


_EVIDENCE = TypeAdapter(Evidence)


def read_evidence(path: Path = EVIDENCE_FILE) -> Evidence:
    """The evidence of the package."""
    return read_typed(_EVIDENCE, path, _MOST, "no evidence")
