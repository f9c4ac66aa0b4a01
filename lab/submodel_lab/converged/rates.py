"""The learning rate of every way: from a small grid, by held-out data, with a seed of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import Field, TypeAdapter

from submodel.errors import SubmodelError
from submodel.experiments import RATES_ENDING, SCORE, Job, sum_known
from submodel.files import UnreadableError, read_typed, write_text

TUNING_SEED = 1000
"""No result is of it."""
STEPS_BEYOND = 2
"""How often a grid is extended whose best rate is at its edge."""
_LAST = 3  # evaluations that are averaged
_MOST = 2**20  # bytes of a file


@dataclass(frozen=True)
class RateTable:
    """What every rate of a grid came to on the held-out part.

    Args:
        slug: whose rates these are.
        rounds: how many each was tried for.
        scores: (rate, score), the mean of the last evaluations; None: it diverged.
        core_seconds: what trying them took of a processor; None: not counted.
    """

    slug: str
    rounds: int
    scores: Annotated[Sequence[tuple[float, float | None]], Field(min_length=1)]
    core_seconds: float | None = None

    @property
    def best(self) -> float:
        """The rate with the best score; of equals the smallest.

        >>> RateTable("a", 10, [(0.1, 0.5), (0.05, 0.5), (0.2, None)]).best
        0.05
        """
        known_scores = [(score, -rate) for rate, score in self.scores if score is not None]
        if not known_scores:
            raise SubmodelError(f"{self.slug}: diverged at every rate of the grid")
        return -max(known_scores)[1]

    @property
    def is_at_edge(self) -> bool:
        """Whether a larger or smaller rate than the grid has might do better still."""
        return self.beyond is not None

    @property
    def beyond(self) -> float | None:
        """The rate to try next, half or twice the best one; None where that is within the grid.

        >>> RateTable("a", 10, [(0.02, 0.5), (0.05, 0.4)]).beyond
        0.01
        >>> RateTable("a", 10, [(0.02, 0.4), (0.05, 0.5), (0.1, None)]).beyond
        """
        rates = [rate for rate, _ in self.scores]
        if len(rates) == 1 or min(rates) < self.best < max(rates):
            return None
        return self.best / 2 if self.best == min(rates) else self.best * 2

    def with_scores(self, other: RateTable) -> RateTable:
        """Its scores and those of rates that were tried later, in order of the rates.

        Args:
            other: of the same name, for as many rounds.
        """
        seconds = [self.core_seconds, other.core_seconds]
        total = None if None in seconds else sum(s for s in seconds if s is not None)
        scores = sorted([*self.scores, *other.scores])
        return RateTable(self.slug, self.rounds, scores, total)

    def write(self, folder: Path) -> None:
        """Keep it beside the records."""
        path = folder / f"{self.slug}{RATES_ENDING}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")


_TABLE = TypeAdapter(RateTable)


def is_extended(rates: Sequence[float], grid: Sequence[float]) -> bool:
    """Whether some rates are a grid and what was tried beyond its edges, if anything was.

    >>> is_extended([0.01, 0.02, 0.05], [0.02, 0.05]), is_extended([0.02, 0.05, 0.5], [0.02, 0.05])
    (True, False)
    """
    low, high = min(grid), max(grid)
    lower = [low / 2**step for step in range(1, 1 + sum(rate < low for rate in rates))]
    higher = [high * 2**step for step in range(1, 1 + sum(rate > high for rate in rates))]
    is_short = len(lower) + len(higher) <= STEPS_BEYOND
    return is_short and sorted(rates) == sorted([*lower, *grid, *higher])


def read_rates(folder: Path, slug: str) -> RateTable | None:
    """The table that was kept of a name; None where there is none."""
    path = folder / f"{slug}{RATES_ENDING}"
    if not path.is_file():
        return None
    try:
        return read_typed(_TABLE, path, _MOST)
    except UnreadableError as error:
        raise SubmodelError(f"{path}: not a table of learning rates ({error})") from None


def rate_table(slug: str, jobs: Mapping[float, Job]) -> RateTable:
    """What the runs of a grid came to.

    Args:
        slug: whose rates these are.
        jobs: the run of every rate; one that did not end diverged.
    """
    scores = [(rate, _held_out_score(job)) for rate, job in jobs.items()]
    rounds = max(job.config.train.rounds for job in jobs.values())
    return RateTable(slug, rounds, scores, sum_known(job.effort for job in jobs.values()))


def _held_out_score(job: Job) -> float | None:
    if not job.is_finished:
        return None
    values = [line[SCORE] for line in job.folder.metrics() if SCORE in line]
    score = fmean(values[-_LAST:])
    return score if math.isfinite(score) else None
