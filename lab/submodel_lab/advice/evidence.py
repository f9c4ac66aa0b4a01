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

from submodel.errors import SubmodelError
from submodel.experiments import Judgement, judge
from submodel.files import UnreadableError, read_typed, write_text

_MOST = 2**24  # bytes of it


EVIDENCE_FILE = Path(__file__).with_name("evidence.json")
"""Where the package has it."""


@dataclass(frozen=True)
class TriedWay:
    """A way to train that was tried.

    Args:
        title: its name in tables.
        settings: what it sets, as ``key=value``.
        reference: why no fleet of mixed capacities would run it; empty: it may be recommended.
        afterwards: a command that follows the run; empty: none.
    """

    title: str
    settings: Sequence[str]
    reference: str = ""
    afterwards: str = ""


@dataclass(frozen=True)
class Circumstances:
    """Where ways were tried.

    Args:
        title: in tables.
        data: the name of the dataset.
        model: the name of the model.
        labels: how many labels a client has; None: not dealt out by labels.
        capacities: (capacity, share of the clients), the largest first.
        rounds: the least and the most that a way had.
        is_converged: whether runs went on until they were flat, or to a stated end.
        budget: what both ways of a contrast had the same amount of.
    """

    title: str
    data: str
    model: str
    labels: int | None
    capacities: Sequence[tuple[float, float]]
    rounds: tuple[int, int]
    is_converged: bool
    budget: str


@dataclass(frozen=True)
class TriedContrast:
    """One way minus another by a measure, seed by seed; positive: in favour of the first.

    Args:
        setting: where, by key.
        better: a way, by key.
        worse: another.
        measure: what is compared.
        differences: seed by seed.
        is_choice: whether a fleet could run either, in the same circumstances.
        rising_runs: how many of the runs to the end were not flat when they ended.
    """

    setting: str
    better: str
    worse: str
    measure: str
    differences: Sequence[float]
    is_choice: bool = True
    rising_runs: int = 0


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
    """All that was measured: ways and circumstances by key, contrasts by family.

    Args:
        ways: by key.
        settings: circumstances, by key.
        families: of contrasts.
        rates: by setting and way, the learning rate that held-out data chose.
    """

    ways: Mapping[str, TriedWay]
    settings: Mapping[str, Circumstances]
    families: Annotated[Sequence[Family], Field(min_length=1)]
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
    try:
        return read_typed(_EVIDENCE, path, _MOST)
    except UnreadableError as error:
        raise SubmodelError(f"{path}: no evidence ({error})") from None
