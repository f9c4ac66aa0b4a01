"""How much of a whole plan is left, told after every run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from submodel.experiments import Job
from submodel_lab.converged.contenders import Contender
from submodel_lab.converged.earlier import missing_seeds, read_earlier, read_earlier_rates


@dataclass
class Outlook:
    """What is left of a plan, in core-seconds as planned, and how long that takes at this pace.

    Args:
        planned: what is left at the beginning, if every run is flat as soon as anybody asks.
        console: where it is told.
        clock: seconds, from any beginning.
    """

    planned: float
    console: Console
    clock: Callable[[], float] = time.monotonic
    seconds_done: float = 0.0
    begin: float = field(init=False)

    def __post_init__(self) -> None:
        """It begins now."""
        self.begin = self.clock()

    def add(self, job: Job) -> None:
        """A run that was not planned at the beginning.

        Args:
            job: which.
        """
        self.planned += _seconds(job)

    def leave_out(self, job: Job) -> None:
        """A run that was finished before.

        Args:
            job: which.
        """
        self.planned -= _seconds(job)

    def book(self, job: Job) -> None:
        """A run has just ended: tell what is left.

        Args:
            job: which.
        """
        self.seconds_done += _seconds(job)
        self.console.print(f"{job.folder.path.parent.name}, seed {job.config.seed}: {self.tell()}")

    def beyond(self, jobs: Sequence[Job]) -> float:
        """What is left of the plan after some jobs, in core-seconds.

        Args:
            jobs: those that come next; what is finished of them counts as nothing.
        """
        next_seconds = sum(_seconds(job) for job in jobs if not job.is_finished)
        return max(0.0, self.planned - self.seconds_done - next_seconds)

    def tell(self) -> str:
        """How far the plan is, in words."""
        rest = max(0.0, self.planned - self.seconds_done)
        text = f"{self.seconds_done / 3600:.2f} of at least {self.planned / 3600:.2f} core-hours"
        if not self.seconds_done:
            return text
        hours = rest * (self.clock() - self.begin) / self.seconds_done / 3600
        return f"{text} of the plan; at this pace {hours:.1f} hours left"


def _seconds(job: Job) -> float:
    return job.rounds_expected(0) * job.seconds


def seconds_left(contenders: Sequence[Contender], records: Path) -> float:
    """What contenders take at least, beyond what is recorded, in core-seconds.

    Args:
        contenders: of the whole plan.
        records: the folder of records.
    """
    seconds = 0.0
    for contender in contenders:
        count = len(missing_seeds(contender, read_earlier(contender, records)))
        seconds += count * contender.course.shortest * contender.seconds
        if count and read_earlier_rates(contender, records) is None:
            seconds += contender.tuning_seconds
    return seconds
