"""Running ways to the end: learning rates first, then seed by seed; what each came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from submodel.experiments import Course, Job, Runner, VariantRecord
from submodel_lab.converged.contenders import Contender
from submodel_lab.converged.earlier import (
    missing_seeds,
    read_earlier,
    read_earlier_rates,
    with_runs,
)
from submodel_lab.converged.outlook import Outlook, seconds_left
from submodel_lab.converged.rates import (
    STEPS_BEYOND,
    TUNING_SEED,
    rate_table,
    read_rates,
)


def converge(
    runner: Runner,
    contenders: Sequence[Contender],
    records: Path,
    outlook: Outlook | None = None,
) -> dict[str, VariantRecord]:
    """Choose rates and run everything; what is recorded already is not run again.

    Args:
        runner: runs several at a time.
        contenders: in order of their weight: each seed goes through all of them.
        records: where tables of rates and records are kept. A run that ends is added at once, to
            the seeds that are there.
        outlook: of the whole plan; None: these contenders are all of it.

    Returns:
        The record of every contender by its slug.
    """
    outlook = outlook or Outlook(seconds_left(contenders, records), runner.console)
    seeds = {c.slug: missing_seeds(c, read_earlier(c, records)) for c in contenders}
    waiting = [contender for contender in contenders if seeds[contender.slug]]
    rates = choose_rates(runner, waiting, records, outlook)
    jobs: dict[str, list[Job]] = {
        c.slug: [run_job_of(runner, c, seed, rates.get(c.slug)) for seed in seeds[c.slug]]
        for c in waiting
    }
    owners = {job.folder.path: contender for contender in waiting for job in jobs[contender.slug]}
    by_seed = sorted((job for own_jobs in jobs.values() for job in own_jobs), key=_seed)
    for job in by_seed:
        if job.is_finished:
            keep_run(owners[job.folder.path], job, records)
            outlook.leave_out(job)

    def keep_and_tell(job: Job) -> None:
        keep_run(owners[job.folder.path], job, records)
        outlook.book(job)

    runner.run_jobs(
        by_seed,
        when_ended=keep_and_tell,
        work_before=outlook.seconds_done,
        work_beyond=outlook.beyond(by_seed),
    )
    results = {c.slug: read_earlier(c, records) for c in contenders}
    return {slug: record for slug, record in results.items() if record is not None}


def _seed(job: Job) -> int:
    return job.config.seed


def keep_run(contender: Contender, job: Job, records: Path) -> None:
    """Add a finished run to the record of its contender.

    Args:
        contender: whose.
        job: the run.
        records: where records are kept.
    """
    record = VariantRecord.of(contender.slug, [job.folder])
    is_flat = contender.course.was_flat(job.folder.config(), job.folder.metrics())
    effort = job.effort.read()
    new = replace(
        record,
        runs=[
            replace(run, is_flat=is_flat, core_seconds=effort.core_seconds, machine=effort.machine)
            for run in record.runs
        ],
    )
    whole = with_runs(read_earlier(contender, records), new)
    whole.write(records / f"{contender.slug}.json")


def run_job_of(runner: Runner, contender: Contender, seed: int, rate: float | None) -> Job:
    """One of a contender's runs.

    Args:
        runner: whose folders it is in.
        contender: whose run.
        seed: which.
        rate: its learning rate; None: as configured.
    """
    config = contender.config_at(seed, rate)
    return runner.job(
        contender.slug, config, contender.course, is_scored=True, seconds=contender.seconds
    )


def choose_rates(
    runner: Runner, contenders: Sequence[Contender], records: Path, outlook: Outlook
) -> dict[str, float]:
    """The learning rate of every contender that has a grid; tried where there is no table yet.

    Where the best rate is at the edge of a grid, half or twice of it is tried, too, and once more;
    not for contenders that have runs already.

    Args:
        runner: runs several at a time.
        contenders: whose grids.
        records: where the tables are kept, each as soon as its grid has been tried.
        outlook: of the whole plan.
    """
    with_grids = [contender for contender in contenders if contender.rates]
    grids = {
        c.slug: _grid(runner, c, c.rates)
        for c in with_grids
        if read_earlier_rates(c, records) is None
    }
    _try_grids(runner, grids, records, outlook)
    for _ in range(STEPS_BEYOND):
        edges = {c.slug: _beyond(runner, c, records) for c in with_grids}
        grids = {slug: grid for slug, grid in edges.items() if grid}
        for job in (job for grid in grids.values() for job in grid.values()):
            outlook.add(job)
        _try_grids(runner, grids, records, outlook)
    tables = {c.slug: read_earlier_rates(c, records) for c in with_grids}
    return {slug: table.best for slug, table in tables.items() if table is not None}


def _try_grids(
    runner: Runner, grids: Mapping[str, Mapping[float, Job]], records: Path, outlook: Outlook
) -> None:
    """Run the trials of some grids; a table is kept or extended as soon as its grid is tried."""
    trials = {job.folder.path: slug for slug, grid in grids.items() for job in grid.values()}
    jobs = [job for grid in grids.values() for job in grid.values()]
    ended_paths = {job.folder.path for job in jobs if job.is_finished}

    def keep_table(slug: str, grid: Mapping[float, Job]) -> None:
        if all(job.folder.path in ended_paths for job in grid.values()):
            table, earlier = rate_table(slug, grid), read_rates(records, slug)
            (table if earlier is None else earlier.with_scores(table)).write(records)

    def note(job: Job) -> None:
        ended_paths.add(job.folder.path)
        outlook.book(job)
        slug = trials[job.folder.path]
        keep_table(slug, grids[slug])

    for job in jobs:
        if job.is_finished:
            outlook.leave_out(job)
    for slug, grid in grids.items():
        keep_table(slug, grid)
    runner.run_jobs(
        jobs,
        may_diverge=True,
        when_ended=note,
        work_before=outlook.seconds_done,
        work_beyond=outlook.beyond(jobs),
    )


def _beyond(runner: Runner, contender: Contender, records: Path) -> dict[float, Job]:
    """The trial of a rate beyond the edge of a grid, where its best rate is there."""
    table = read_earlier_rates(contender, records)
    if table is None or table.beyond is None or read_earlier(contender, records) is not None:
        return {}
    if len(table.scores) >= len(contender.rates) + STEPS_BEYOND:
        return {}
    return _grid(runner, contender, [table.beyond])


def _grid(runner: Runner, contender: Contender, rates: Sequence[float]) -> dict[float, Job]:
    course = Course(contender.tuning_rounds, contender.tuning_rounds, step=1, final=0)
    return {
        rate: runner.job(
            f"rates/{contender.slug}-lr-{rate:g}",
            contender.config_at(TUNING_SEED, rate),
            course,
            seconds=contender.seconds,
        )
        for rate in rates
    }
