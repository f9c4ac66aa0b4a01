"""Evidence for advice: contrasts seed by seed, with the circumstances of each measurement.

`make results` writes the file from the records in results/; a test asserts that both agree.
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

_MOST_BYTES = 2**24
EVIDENCE_FILE = Path(__file__).with_name("evidence.json")


@dataclass(frozen=True)
class Method:
    """A training method that was measured."""

    title: str  # name in tables
    settings: Sequence[str]  # overrides, as ``key=value``
    # reason why no fleet of mixed capacities would run it; empty: it may be recommended
    reference: str = ""
    afterwards: str = ""  # command that follows the run; empty: none


@dataclass(frozen=True)
class Circumstances:
    """Circumstances of a measurement."""

    title: str  # name in tables
    data: str  # name of the dataset
    model: str  # name of the model
    labels: int | None  # labels of a client; None: data is not split by labels
    capacities: Sequence[tuple[float, float]]  # (capacity, share of the clients), the largest first
    rounds: tuple[int, int]  # fewest and most rounds of a method
    is_converged: bool  # whether runs continued until they were flat, or to a stated end
    budget: str  # the resource of which both methods of a contrast had the same amount


@dataclass(frozen=True)
class TriedContrast:
    """One method minus another by a measure, seed by seed; positive: in favour of the first."""

    setting: str  # key of the circumstances
    better: str  # key of a method
    worse: str  # key of another method
    measure: str
    differences: Sequence[float]  # seed by seed
    is_choice: bool = True  # whether a fleet could run either, in the same circumstances
    rising_runs: int = 0  # number of converged runs that were not flat at their end


@dataclass(frozen=True)
class Family:
    """Contrasts that are judged together, and the folder of their records."""

    name: str
    source: str
    contrasts: Sequence[TriedContrast]
    is_best_chosen: bool = False  # the first method was chosen as the best of these same runs

    @cached_property
    def judgements(self) -> list[Judgement]:
        """Judgement of each contrast, corrected for their number."""
        return judge([contrast.differences for contrast in self.contrasts])


@dataclass(frozen=True)
class Evidence:
    """All evidence: methods and circumstances by key, contrasts by family."""

    ways: Mapping[str, Method]  # methods by key
    settings: Mapping[str, Circumstances]  # circumstances by key
    families: Annotated[Sequence[Family], Field(min_length=1)]
    # learning rates chosen on held-out data, by setting and method
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write JSON with a line for each method, setting, table of rates and contrast."""
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
    """Read a file of evidence; by default the one in the package."""
    return read_typed(_EVIDENCE, path, _MOST_BYTES, "no evidence")
