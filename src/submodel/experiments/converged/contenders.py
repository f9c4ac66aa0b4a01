"""Running ways to the end: learning rates first, then seed by seed; what each came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from submodel.config import Config
from submodel.experiments.converged.course import Course
from submodel.experiments.converged.rates import TUNING_SEED, RateTable, rate_table, read_rates
from submodel.experiments.jobs import Job
from submodel.experiments.records import VariantRecord
from submodel.experiments.runner import Runner


@dataclass(frozen=True)
class Contender:
    """One run of a way for each seed.

    Args:
        slug: its name in folders.
        config: its configuration, by seed.
        course: how long its runs go on.
        seeds: how many there are.
        rates: the grid of learning rates; none: as configured.
        tuning_rounds: how long each of those is tried.
        seconds: what a round takes of a core, as measured or guessed.
    """

    slug: str
    config: Callable[[int], Config]
    course: Course
    seeds: Sequence[int]
    rates: Sequence[float] = ()
    tuning_rounds: int = 0
    seconds: float = 1.0

    @property
    def tuning_seconds(self) -> float:
        """What its grid takes of a core."""
        return len(self.rates) * self.tuning_rounds * self.seconds

    @property
    def least_seconds(self) -> float:
        """What its runs take at least: flat as soon as anybody asks."""
        return len(self.seeds) * self.course.shortest * self.seconds

    @property
    def most_seconds(self) -> float:
        """And at most: never flat."""
        return len(self.seeds) * self.course.longest * self.seconds


def converge(
    runner: Runner, contenders: Sequence[Contender], records: Path
) -> dict[str, VariantRecord]:
    """Choose rates and run everything; what is there already is not run again.

    Args:
        runner: runs several at a time.
        contenders: in order of their weight: each seed goes through all of them.
        records: where tables of rates and records are kept, as soon as there are any.

    Returns:
        The record of every contender by its slug.
    """
    rates = {table.slug: table.best for table in choose_rates(runner, contenders, records)}
    jobs = run_jobs_of(runner, contenders, rates)
    seeds = max(len(c.seeds) for c in contenders)
    order = [
        jobs[c.slug][place] for place in range(seeds) for c in contenders if place < len(c.seeds)
    ]
    try:
        runner.run_jobs(order)
    finally:
        results = keep_records(contenders, jobs, records)
    return results


def keep_records(
    contenders: Sequence[Contender], jobs: Mapping[str, Sequence[Job]], folder: Path
) -> dict[str, VariantRecord]:
    """Write the record of every contender that has a finished run; those by slug.

    Args:
        contenders: whose.
        jobs: their runs.
        folder: where records go.
    """
    results = {}
    for contender in contenders:
        finished_jobs = [job for job in jobs[contender.slug] if job.is_finished]
        if finished_jobs:
            record = VariantRecord.of(contender.slug, [job.folder for job in finished_jobs])
            runs = [
                replace(
                    run,
                    is_flat=contender.course.was_flat(job.folder.config(), job.folder.metrics()),
                )
                for run, job in zip(record.runs, finished_jobs, strict=True)
            ]
            results[contender.slug] = replace(record, runs=runs)
            results[contender.slug].write(folder / f"{contender.slug}.json")
    return results


def run_jobs_of(
    runner: Runner, contenders: Sequence[Contender], rates: Mapping[str, float]
) -> dict[str, list[Job]]:
    """The runs of all contenders with their learning rates, seed by seed.

    Args:
        runner: whose folders they are in.
        contenders: whose runs.
        rates: by slug; others run as configured.
    """
    return {
        c.slug: [
            runner.job(
                c.slug,
                _with_rate(c.config(seed), rates.get(c.slug)),
                c.course,
                is_scored=True,
                seconds=c.seconds,
            )
            for seed in c.seeds
        ]
        for c in contenders
    }


def choose_rates(runner: Runner, contenders: Sequence[Contender], records: Path) -> list[RateTable]:
    """Try the grid of every contender that has no table yet; the tables of all.

    Args:
        runner: runs several at a time.
        contenders: whose grids.
        records: where the tables are kept.
    """
    grids: dict[str, dict[float, Job]] = {}
    for contender in contenders:
        if contender.rates and read_rates(records, contender.slug) is None:
            course = Course(contender.tuning_rounds, contender.tuning_rounds, step=1, final=0)
            grids[contender.slug] = {
                rate: runner.job(
                    f"rates/{contender.slug}-lr-{rate:g}",
                    _with_rate(contender.config(TUNING_SEED), rate),
                    course,
                    seconds=contender.seconds,
                )
                for rate in contender.rates
            }
    runner.run_jobs([job for grid in grids.values() for job in grid.values()], may_diverge=True)
    for slug, grid in grids.items():
        rate_table(slug, grid).write(records)
    return [t for c in contenders if c.rates and (t := read_rates(records, c.slug)) is not None]


def _with_rate(config: Config, rate: float | None) -> Config:
    if rate is None:
        return config
    return config.model_copy(update={"local": config.local.with_values(lr=rate)})
