"""What came out of a comparison: the records of all ways, kept as JSON, and how they stand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from submodel.errors import SubmodelError
from submodel.experiments.records import COMPARISON_FILE, VariantRecord
from submodel.experiments.statistics import Judgement, behind_best, spread
from submodel.files import UnreadableError, read_typed

_LARGEST = 1 << 24  # bytes of it


@dataclass(frozen=True)
class _Entry:
    """A way in the file that lists all of them."""

    text: str
    title: str
    slug: Annotated[str, Field(pattern=r"^[\w.-]+$", max_length=200)]  # a name, not a path


@dataclass(frozen=True)
class _Index:
    """The file that lists all ways; their records lie beside it."""

    command: str
    budget: str
    ways: Annotated[list[_Entry], Field(min_length=1)]


_INDEX = TypeAdapter(_Index)


@dataclass(frozen=True)
class WayRecord:
    """One way and its runs."""

    text: str  # as it was given
    title: str
    record: VariantRecord

    @property
    def rounds(self) -> list[int]:
        """How many, seed by seed."""
        return [int(rounds) for rounds in self.record.final("round").values()]

    def cost(self, what: str) -> float:
        """The bytes or flops of a run, the mean over seeds."""
        return spread(list(self.record.final(what).values()))[0]


@dataclass(frozen=True)
class Findings:
    """All ways that were compared, and under which budget."""

    ways: Sequence[WayRecord]
    budget: str  # in words
    command: str

    @property
    def seeds(self) -> list[int]:
        """The seeds that every way ran with."""
        return [run.seed for run in self.ways[0].record.runs]

    def judgements(self) -> dict[str, Judgement]:
        """Of all ways but the best: whether it is behind that, by its final test accuracy.

        The keys are the texts that the ways were given as.
        """
        return behind_best({way.text: way.record.final("accuracy") for way in self.ways})

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from submodel.experiments.comparison.report import comparison_html  # which reads findings

        return comparison_html(self)

    def write(self, folder: Path) -> None:
        """Keep everything that the report needs."""
        for way in self.ways:
            way.record.write(folder / f"{way.record.slug}.json")
        entries = [_Entry(way.text, way.title, way.record.slug) for way in self.ways]
        index = _Index(self.command, self.budget, entries)
        (folder / COMPARISON_FILE).write_text(json.dumps(asdict(index), indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> Findings:
        """What `write` wrote."""
        path = folder / COMPARISON_FILE
        try:
            index = read_typed(_INDEX, path, _LARGEST)
        except UnreadableError as error:
            raise SubmodelError(f"{path}: not the records of a comparison ({error})") from None
        ways = [
            WayRecord(way.text, way.title, VariantRecord.read(folder / f"{way.slug}.json"))
            for way in index.ways
        ]
        return cls(ways, index.budget, index.command)

    def only(self, texts: Sequence[str]) -> Findings:
        """Some of the ways, in another order perhaps."""
        by_text = {way.text: way for way in self.ways}
        if unknown := [text for text in texts if text not in by_text]:
            raise SubmodelError(
                f"way {unknown[0]!r} has no record there; recorded are {', '.join(by_text)}"
            )
        return Findings([by_text[text] for text in texts], self.budget, self.command)
