"""What came out of a comparison: the records of all ways, kept as JSON, and how they stand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from submodel.errors import SubmodelError
from submodel.experiments.records import Record, spread
from submodel.experiments.statistics import Standing, standings

_INDEX = "comparison.json"


@dataclass(frozen=True)
class Compared:
    """One way and its runs."""

    text: str  # as it was given
    title: str
    record: Record

    @property
    def rounds(self) -> list[int]:
        """How many, seed by seed."""
        return [int(run.lines[-1]["round"]) for run in self.record.runs]

    def cost(self, what: str) -> float:
        """The bytes or flops of a run, the mean over seeds."""
        return spread([run.lines[-1][what] for run in self.record.runs])[0]


@dataclass(frozen=True)
class Findings:
    """All ways that were compared, and under which budget."""

    ways: Sequence[Compared]
    budget: str  # in words
    command: str

    @property
    def seeds(self) -> list[int]:
        """The seeds that every way ran with."""
        return [run.seed for run in self.ways[0].record.runs]

    def standings(self) -> dict[str, Standing]:
        """Where each way stands by its final test accuracy, by the text it was given as."""
        return standings({way.text: way.record.final("accuracy") for way in self.ways})

    def write(self, folder: Path) -> None:
        """Keep everything that the report needs."""
        for way in self.ways:
            way.record.write(folder / f"{way.record.slug}.json")
        index = {
            "command": self.command,
            "budget": self.budget,
            "ways": [
                {"text": way.text, "title": way.title, "slug": way.record.slug} for way in self.ways
            ],
        }
        (folder / _INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, folder: Path) -> Findings:
        """What `write` wrote."""
        path = folder / _INDEX
        try:
            index: Mapping[str, str] = json.loads(path.read_text("utf-8"))
            entries = [(way["text"], way["title"], way["slug"]) for way in _entries(index["ways"])]
            budget, command = index["budget"], index["command"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SubmodelError(f"{path}: not the records of a comparison ({error})") from None
        ways = [
            Compared(text, title, Record.read(folder / f"{slug}.json"))
            for text, title, slug in entries
        ]
        return cls(ways, budget, command)

    def only(self, texts: Sequence[str]) -> Findings:
        """Some of the ways, in another order perhaps."""
        by_text = {way.text: way for way in self.ways}
        if unknown := [text for text in texts if text not in by_text]:
            raise SubmodelError(
                f"way {unknown[0]!r} has no record there; recorded are {', '.join(by_text)}"
            )
        return Findings([by_text[text] for text in texts], self.budget, self.command)


def _entries(ways: object) -> list[Mapping[str, str]]:
    if not isinstance(ways, list) or not ways:
        raise TypeError("it has no ways")
    return ways
