"""How processes put their sums together: piece by piece, many small pieces at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_AT_ONCE = 1 << 20  # values that are exchanged together


class Exchange(Protocol):
    """With the other processes of a group; all take part in the same order."""

    def add(self, values: Tensor) -> None:
        """Let the values be the sums of everyone's, in place."""
        ...

    def gather(self, word: str | None) -> list[str | None]:
        """The words of all."""
        ...

    def release(self) -> None:
        """Nobody needs the updates of this round any more, wherever they lie."""
        ...


@dataclass(frozen=True)
class SumJob:
    """Sums of this process, and what is done with the sums of all; None: nothing is summed.

    Args:
        sums: in float64.
        finish: takes the sums of all processes, in the same shape.
    """

    sums: Tensor | None
    finish: Callable[[Tensor], None]


def run_jobs(jobs: Iterable[SumJob], exchange: Exchange | None) -> None:
    """Finish every job, in their order.

    Args:
        jobs: made one at a time.
        exchange: with the other processes; None: there are none.
    """
    if exchange is None:
        for job in jobs:
            job.finish(torch.empty(0) if job.sums is None else job.sums)
        return
    waiting: list[SumJob] = []
    values = 0
    for job in jobs:
        waiting.append(job)
        values += 0 if job.sums is None else job.sums.numel()
        if values >= _AT_ONCE:
            _finish_together(waiting, exchange)
            waiting, values = [], 0
    _finish_together(waiting, exchange)


def _finish_together(jobs: list[SumJob], exchange: Exchange) -> None:
    """One exchange for all of them."""
    sums = [job.sums for job in jobs if job.sums is not None]
    if sums:
        together = torch.cat([one.reshape(-1) for one in sums])
        exchange.add(together)
        parts = iter(torch.split(together, [one.numel() for one in sums]))
    for job in jobs:
        job.finish(torch.empty(0) if job.sums is None else next(parts).view(job.sums.shape))
