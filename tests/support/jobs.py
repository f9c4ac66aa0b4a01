"""Runs of experiments without separate processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from submodel.cli.common import command_line
from submodel.comparison.runner import Job, Runner


def run_in_this_process(
    self: Runner,
    jobs: Sequence[Job],
    *,
    may_diverge: bool = False,
    when_ended: Callable[[Job], None] | None = None,
    work_before: float = 0.0,
    work_beyond: float = 0.0,
) -> None:
    """Replace `Runner.run_jobs`, running jobs one after another."""
    for job in jobs:
        if not job.is_finished:
            while not job.is_finished:
                command_line(job.command(), standalone_mode=False)
            if when_ended is not None:
                when_ended(job)
