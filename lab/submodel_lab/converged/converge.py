"""Converged runs: tune learning rates, run seed by seed, and keep records."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import Field, TypeAdapter
from rich.console import Console

from submodel.comparison import (
    RATES_ENDING,
    SCORE,
    ArmRecord,
    Course,
    Job,
    Runner,
    SeedRun,
    portable,
    sum_known,
)
from submodel.config import differences, parse
from submodel.core import ConfigError, SubmodelError, read_typed, write_text
from submodel_lab.converged.arms import RunSpec

TUNING_SEED = 1000
"""Seed of the trials of learning rates; no result uses it."""
STEPS_BEYOND = 2
"""Number of extensions of a grid whose best rate is at its edge."""
_LAST = 3  # number of averaged evaluations
_MOST_BYTES = 2**20  # bytes of a file
_ELSEWHERE = ("seed", "data.path", "data.source")  # keys that may differ between machines and runs


@dataclass(frozen=True)
class RateTable:
    """Held-out score of every rate of a grid."""

    slug: str  # name of the runs that use these rates
    rounds: int  # rounds of each trial
    # (rate, score), the mean of the last evaluations; None: it diverged
    scores: Annotated[Sequence[tuple[float, float | None]], Field(min_length=1)]
    core_seconds: float | None = None  # cost of the trials; None: not counted

    @property
    def best(self) -> float:
        """Rate with the best score; of equal ones the smallest.

        >>> RateTable("a", 10, [(0.1, 0.5), (0.05, 0.5), (0.2, None)]).best
        0.05
        """
        known_scores = [(score, -rate) for rate, score in self.scores if score is not None]
        if not known_scores:
            raise SubmodelError(f"{self.slug}: diverged at every rate of the grid")
        return -max(known_scores)[1]

    @property
    def is_at_edge(self) -> bool:
        """Whether a rate beyond the grid might be better."""
        return self.beyond is not None

    @property
    def beyond(self) -> float | None:
        """The next rate to try, half or twice the best one; None if the best is inside the grid.

        >>> RateTable("a", 10, [(0.02, 0.5), (0.05, 0.4)]).beyond
        0.01
        >>> RateTable("a", 10, [(0.02, 0.4), (0.05, 0.5), (0.1, None)]).beyond
        """
        rates = [rate for rate, _ in self.scores]
        if len(rates) == 1 or min(rates) < self.best < max(rates):
            return None
        return self.best / 2 if self.best == min(rates) else self.best * 2

    def with_scores(self, other: RateTable) -> RateTable:
        """Return a table with the scores of both, in order of the rates."""
        seconds = [self.core_seconds, other.core_seconds]
        total = None if None in seconds else sum(s for s in seconds if s is not None)
        scores = sorted([*self.scores, *other.scores])
        return RateTable(self.slug, self.rounds, scores, total)

    def write(self, folder: Path) -> None:
        """Write the table beside the records."""
        path = folder / f"{self.slug}{RATES_ENDING}"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(asdict(self), indent=1) + "\n")


_TABLE = TypeAdapter(RateTable)


def is_extended(rates: Sequence[float], grid: Sequence[float]) -> bool:
    """Return whether some rates are a grid with at most `STEPS_BEYOND` extensions at its edges.

    >>> is_extended([0.01, 0.02, 0.05], [0.02, 0.05]), is_extended([0.02, 0.05, 0.5], [0.02, 0.05])
    (True, False)
    """
    low, high = min(grid), max(grid)
    lower = [low / 2**step for step in range(1, 1 + sum(rate < low for rate in rates))]
    higher = [high * 2**step for step in range(1, 1 + sum(rate > high for rate in rates))]
    is_short = len(lower) + len(higher) <= STEPS_BEYOND
    return is_short and sorted(rates) == sorted([*lower, *grid, *higher])


def read_rates(folder: Path, slug: str) -> RateTable | None:
    """Read a table of rates; None if there is none."""
    path = folder / f"{slug}{RATES_ENDING}"
    if not path.is_file():
        return None
    return read_typed(_TABLE, path, _MOST_BYTES, "not a table of learning rates")


def rate_table(slug: str, jobs: Mapping[float, Job]) -> RateTable:
    """Make the table of rates from the runs of a grid."""
    scores = [(rate, _held_out_score(job)) for rate, job in jobs.items()]
    rounds = max(job.config.train.rounds for job in jobs.values())
    return RateTable(slug, rounds, scores, sum_known(job.effort for job in jobs.values()))


def _held_out_score(job: Job) -> float | None:
    if not job.is_finished:
        return None
    values = [line[SCORE] for line in job.folder.metrics() if SCORE in line]
    score = fmean(values[-_LAST:])
    return score if math.isfinite(score) else None


def read_earlier(spec: RunSpec, records: Path) -> ArmRecord | None:
    """Read the recorded runs of a spec; None if there are none.

    Raises `SubmodelError` if they are runs of another configuration.
    """
    path = records / f"{spec.slug}.json"
    if not path.is_file():
        return None
    record = ArmRecord.read(path)
    table = read_earlier_rates(spec, records)
    if reason := _misfit(spec, record, None if table is None else table.best):
        raise SubmodelError(
            f"{path} is of another configuration ({reason}): give another folder, or remove it"
        )
    return record


def read_earlier_rates(spec: RunSpec, records: Path) -> RateTable | None:
    """Read the tried rates of a spec; None if there are none.

    Raises `SubmodelError` if they are of another grid; the grid may have been extended.
    """
    table = read_rates(records, spec.slug)
    if table is None or not spec.rates:
        return None
    then = table.rounds, sorted(rate for rate, _ in table.scores)
    now = spec.tuning_rounds, sorted(spec.rates)
    if then[0] != now[0] or not is_extended(then[1], now[1]):
        raise SubmodelError(
            f"{records / f'{spec.slug}{RATES_ENDING}'} is of another grid "
            f"({_describe_grid(*then)} then, {_describe_grid(*now)} now): "
            "give another folder, or remove it"
        )
    return table


def _describe_grid(rounds: int, rates: Sequence[float]) -> str:
    return f"{', '.join(f'{rate:g}' for rate in rates)} for {rounds} rounds"


def _misfit(spec: RunSpec, record: ArmRecord, rate: float | None) -> str:
    """Return the reason why a record does not fit a spec, or an empty text."""
    try:
        then = parse(record.config)
    except ConfigError as error:
        return error.problems[0]
    if rate is None and spec.rates:
        rate = then.local.lr  # from any grid
    now = parse(portable(spec.course.begin(spec.config_at(then.seed, rate))))
    for key, (old, new) in differences(spec.course.begin(then), now).items():
        if key not in _ELSEWHERE and not key.startswith("engine."):
            return f"{key}: {old} then, {new} now"
    if not spec.course.ends_with(then):
        return f"train.rounds: {then.train.rounds}, where no run of this course ends"
    return ""


def missing_seeds(spec: RunSpec, record: ArmRecord | None) -> list[int]:
    """List the seeds without a recorded run."""
    seeds_there = set() if record is None else {run.seed for run in record.runs}
    return [seed for seed in spec.seeds if seed not in seeds_there]


def with_runs(record: ArmRecord | None, new: ArmRecord) -> ArmRecord:
    """Merge earlier and new runs into one record, in order of their seeds."""
    runs: dict[int, SeedRun] = {} if record is None else {run.seed: run for run in record.runs}
    runs |= {run.seed: run for run in new.runs}
    config = new.config if record is None else record.config
    return replace(new, config=config, runs=[runs[seed] for seed in sorted(runs)])


@dataclass
class Outlook:
    """Progress of a plan in core-seconds, with an estimate of the remaining time."""

    planned: float  # core-seconds at the start, if every run is flat at the first test
    console: Console
    clock: Callable[[], float] = time.monotonic
    seconds_done: float = 0.0
    begin: float = field(init=False)

    def __post_init__(self) -> None:
        """Start the clock."""
        self.begin = self.clock()

    def add(self, job: Job) -> None:
        """Add a run that was not planned at the start."""
        self.planned += _seconds(job)

    def leave_out(self, job: Job) -> None:
        """Remove a run that was finished before."""
        self.planned -= _seconds(job)

    def record(self, job: Job) -> None:
        """Record a finished run and print the progress."""
        self.seconds_done += _seconds(job)
        name = f"{job.folder.path.parent.name}, seed {job.config.seed}"
        self.console.print(f"{name}: {self.describe()}")

    def beyond(self, jobs: Sequence[Job]) -> float:
        """Return the remaining core-seconds of the plan after some jobs."""
        next_seconds = sum(_seconds(job) for job in jobs if not job.is_finished)
        return max(0.0, self.planned - self.seconds_done - next_seconds)

    def describe(self) -> str:
        """Describe the progress of the plan."""
        rest = max(0.0, self.planned - self.seconds_done)
        text = f"{self.seconds_done / 3600:.2f} of at least {self.planned / 3600:.2f} core-hours"
        if not self.seconds_done:
            return text
        hours = rest * (self.clock() - self.begin) / self.seconds_done / 3600
        return f"{text} of the plan; at this pace {hours:.1f} hours left"


def _seconds(job: Job) -> float:
    return job.rounds_expected(0) * job.seconds


def seconds_left(specs: Sequence[RunSpec], records: Path) -> float:
    """Return the least core-seconds of the runs that are not recorded."""
    seconds = 0.0
    for spec in specs:
        count = len(missing_seeds(spec, read_earlier(spec, records)))
        seconds += count * spec.course.shortest * spec.seconds
        if count and read_earlier_rates(spec, records) is None:
            seconds += spec.tuning_seconds
    return seconds


def converge(
    runner: Runner, specs: Sequence[RunSpec], records: Path, outlook: Outlook | None = None
) -> dict[str, ArmRecord]:
    """Choose rates and run all seeds that are not recorded.

    Each seed goes through all specs, in their order. A finished run is added to the records at
    once. Without an outlook these specs are the whole plan. Returns records by slug.
    """
    outlook = outlook or Outlook(seconds_left(specs, records), runner.console)
    seeds = {c.slug: missing_seeds(c, read_earlier(c, records)) for c in specs}
    waiting = [spec for spec in specs if seeds[spec.slug]]
    rates = choose_rates(runner, waiting, records, outlook)
    jobs: dict[str, list[Job]] = {
        c.slug: [
            runner.job(
                c.slug,
                c.config_at(seed, rates.get(c.slug)),
                c.course,
                is_scored=True,
                seconds=c.seconds,
            )
            for seed in seeds[c.slug]
        ]
        for c in waiting
    }
    owners = {job.folder.path: spec for spec in waiting for job in jobs[spec.slug]}
    by_seed = sorted(
        (job for own_jobs in jobs.values() for job in own_jobs), key=attrgetter("config.seed")
    )
    for job in by_seed:
        if job.is_finished:
            keep_run(owners[job.folder.path], job, records)
            outlook.leave_out(job)

    def keep_and_report(job: Job) -> None:
        keep_run(owners[job.folder.path], job, records)
        outlook.record(job)

    runner.run_jobs(
        by_seed,
        when_ended=keep_and_report,
        work_before=outlook.seconds_done,
        work_beyond=outlook.beyond(by_seed),
    )
    results = {c.slug: read_earlier(c, records) for c in specs}
    return {slug: record for slug, record in results.items() if record is not None}


def keep_run(spec: RunSpec, job: Job, records: Path) -> None:
    """Add a finished run to the records."""
    record = ArmRecord.of(spec.slug, [job.folder])
    is_flat = spec.course.was_flat(job.folder.config(), job.folder.metrics())
    effort = job.effort.read()
    new = replace(
        record,
        runs=[
            replace(run, is_flat=is_flat, core_seconds=effort.core_seconds, machine=effort.machine)
            for run in record.runs
        ],
    )
    whole = with_runs(read_earlier(spec, records), new)
    whole.write(records / f"{spec.slug}.json")


def choose_rates(
    runner: Runner, specs: Sequence[RunSpec], records: Path, outlook: Outlook
) -> dict[str, float]:
    """Return the learning rate of every spec with a grid, after trying the missing ones.

    If the best rate is at the edge of a grid, half or twice of it is tried as well, at most twice,
    unless the spec already has runs.
    """
    with_grids = [spec for spec in specs if spec.rates]
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
    """Run the trials of some grids; a table is written or extended when its grid is complete."""
    trials = {job.folder.path: slug for slug, grid in grids.items() for job in grid.values()}
    jobs = [job for grid in grids.values() for job in grid.values()]
    ended_paths = {job.folder.path for job in jobs if job.is_finished}

    def keep_table(slug: str, grid: Mapping[float, Job]) -> None:
        if all(job.folder.path in ended_paths for job in grid.values()):
            table, earlier = rate_table(slug, grid), read_rates(records, slug)
            (table if earlier is None else earlier.with_scores(table)).write(records)

    def note(job: Job) -> None:
        ended_paths.add(job.folder.path)
        outlook.record(job)
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


def _beyond(runner: Runner, spec: RunSpec, records: Path) -> dict[float, Job]:
    """Make the trial of a rate beyond the edge of a grid if its best rate is at the edge."""
    table = read_earlier_rates(spec, records)
    if table is None or table.beyond is None or read_earlier(spec, records) is not None:
        return {}
    if len(table.scores) >= len(spec.rates) + STEPS_BEYOND:
        return {}
    return _grid(runner, spec, [table.beyond])


def _grid(runner: Runner, spec: RunSpec, rates: Sequence[float]) -> dict[float, Job]:
    course = Course(spec.tuning_rounds, spec.tuning_rounds, step=1, final=0)
    return {
        rate: runner.job(
            f"rates/{spec.slug}-lr-{rate:g}",
            spec.config_at(TUNING_SEED, rate),
            course,
            seconds=spec.seconds,
        )
        for rate in rates
    }
