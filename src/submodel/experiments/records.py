"""What a variant came to over its seeds: small enough to keep, enough to redraw every figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from submodel.config import Config
from submodel.errors import SubmodelError
from submodel.files import UnreadableError, read_typed
from submodel.runs.loop import Metrics, RunFolder

_KEPT = ("round", "test_loss", "test_accuracy", "train_eval_loss", "train_eval_accuracy")
Line = dict[str, float]
MEASURES: dict[str, Callable[[Line], float]] = {
    "accuracy": lambda line: line["test_accuracy"],
    "loss": lambda line: line["test_loss"],
    "train accuracy": lambda line: line["train_eval_accuracy"],
    "train loss": lambda line: line["train_eval_loss"],
    "loss gap": lambda line: abs(line["test_loss"] - line["train_eval_loss"]),
    "accuracy gap": lambda line: abs(line["test_accuracy"] - line["train_eval_accuracy"]),
}
SMALLER_IS_BETTER = ("loss", "train loss", "loss gap", "accuracy gap")
_LARGEST = 1 << 27  # bytes of a record


@dataclass(frozen=True)
class SeedRun:
    """One run: its evaluated rounds."""

    seed: int
    lines: Sequence[Line]  # those of older records lack bytes and flops
    seconds: float
    model_sha256: str


@dataclass(frozen=True)
class VariantRecord:
    """The runs of one variant: a configuration but for its seed."""

    slug: str
    config: dict[str, Any]  # of the first seed
    runs: Sequence[SeedRun]

    @classmethod
    def of(cls, slug: str, folders: Sequence[RunFolder]) -> VariantRecord:
        """Read finished runs, seed by seed."""
        runs = []
        for folder in folders:
            summary, config = folder.summary(), folder.config()
            if summary is None:
                raise SubmodelError(f"{folder.path} is not finished")
            lines = _evaluated(folder.metrics())
            sha = summary["model_sha256"]
            runs.append(SeedRun(config.seed, lines, summary["seconds"], sha))
        return cls(slug, _plain(folders[0].config()), runs)

    @classmethod
    def read(cls, path: Path) -> VariantRecord:
        """A record that `write` wrote."""
        try:
            return read_typed(_RECORD, path, _LARGEST)
        except UnreadableError as error:
            raise SubmodelError(f"{path}: not a record of runs ({error})") from None

    def write(self, path: Path) -> None:
        """As JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")

    def final(self, measure: str) -> dict[int, float]:
        """Seed -> the measure after the last round."""
        return {run.seed: MEASURES[measure](run.lines[-1]) for run in self.runs}

    def ahead_of(self, other: VariantRecord, measure: str) -> list[float]:
        """By how much it did better with the seeds that both have, seed by seed.

        Args:
            other: What it is compared with.
            measure: One of `MEASURES`; losses and gaps count the other way.
        """
        sign = -1 if measure in SMALLER_IS_BETTER else 1
        first, second = self.final(measure), other.final(measure)
        return [sign * (first[seed] - second[seed]) for seed in first if seed in second]

    def against(self, cost: str, measure: str) -> list[tuple[list[float], list[float]]]:
        """Of every run: what it had cost (round, bytes or flops), and the measure then."""
        return [
            ([line[cost] for line in run.lines], [MEASURES[measure](line) for line in run.lines])
            for run in self.runs
        ]

    def curve(self, measure: str) -> tuple[list[float], list[list[float]]]:
        """The evaluated rounds, and each run's values."""
        rounds = [line["round"] for line in self.runs[0].lines]
        return rounds, [[MEASURES[measure](line) for line in run.lines] for run in self.runs]


_RECORD = TypeAdapter(VariantRecord)


def _evaluated(history: Sequence[Metrics]) -> list[Line]:
    """The rounds with a score, and the bytes (down + up) and FLOPs of all rounds until then."""
    sent = accumulate(line["bytes_down"] + line["bytes_up"] for line in history)
    computed = accumulate(line["flops"] for line in history)
    return [
        {key: line[key] for key in _KEPT if key in line} | {"bytes": total, "flops": flops}
        for line, total, flops in zip(history, sent, computed, strict=True)
        if "test_loss" in line
    ]


def _plain(config: Config) -> dict[str, Any]:
    plain: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    return plain
