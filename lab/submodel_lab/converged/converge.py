"""Running contenders to the end: learning rates first, then seed by seed; records are kept."""

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
from submodel_lab.converged.candidates import Contender

TUNING_SEED = 1000
"""No result is of it."""
STEPS_BEYOND = 2
"""How often a grid is extended whose best rate is at its edge."""
_LAST = 3  # evaluations that are averaged
_MOST_BYTES = 2**20  # bytes of a file
_ELSEWHERE = ("seed", "data.path", "data.source")  # where the same data was found, and which run


@dataclass(frozen=True)
class RateTable:
    """What every rate of a grid came to on the held-out part."""

    slug: str  # whose rates these are
    rounds: int  # how many each was tried for
    # (rate, score), the mean of the last evaluations; None: it diverged
    scores: Annotated[Sequence[tuple[float, float | None]], Field(min_length=1)]
    core_seconds: float | None = None  # what trying them took of a processor; None: not counted

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
        """Its scores and those of rates that were tried later, in order of the rates."""
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
    return read_typed(_TABLE, path, _MOST_BYTES, "not a table of learning rates")


def rate_table(slug: str, jobs: Mapping[float, Job]) -> RateTable:
    """What the runs of a grid came to."""
    scores = [(rate, _held_out_score(job)) for rate, job in jobs.items()]
    rounds = max(job.config.train.rounds for job in jobs.values())
    return RateTable(slug, rounds, scores, sum_known(job.effort for job in jobs.values()))


def _held_out_score(job: Job) -> float | None:
    if not job.is_finished:
        return None
    values = [line[SCORE] for line in job.folder.metrics() if SCORE in line]
    score = fmean(values[-_LAST:])
    return score if math.isfinite(score) else None


def read_earlier(contender: Contender, records: Path) -> ArmRecord | None:
    """The runs that a contender has already; None where there are none.

    Raises `SubmodelError` where they were runs of something else.
    """
    path = records / f"{contender.slug}.json"
    if not path.is_file():
        return None
    record = ArmRecord.read(path)
    table = read_earlier_rates(contender, records)
    if reason := _misfit(contender, record, None if table is None else table.best):
        raise SubmodelError(
            f"{path} is of another configuration ({reason}): give another folder, or take it away"
        )
    return record


def read_earlier_rates(contender: Contender, records: Path) -> RateTable | None:
    """The rates that were tried for a contender already; None where none were.

    Raises `SubmodelError` where it was another grid; it may be longer at its ends.
    """
    table = read_rates(records, contender.slug)
    if table is None or not contender.rates:
        return None
    then = table.rounds, sorted(rate for rate, _ in table.scores)
    now = contender.tuning_rounds, sorted(contender.rates)
    if then[0] != now[0] or not is_extended(then[1], now[1]):
        raise SubmodelError(
            f"{records / f'{contender.slug}{RATES_ENDING}'} is of another grid "
            f"({_describe_grid(*then)} then, {_describe_grid(*now)} now): "
            "give another folder, or take it away"
        )
    return table


def _describe_grid(rounds: int, rates: Sequence[float]) -> str:
    return f"{', '.join(f'{rate:g}' for rate in rates)} for {rounds} rounds"


def _misfit(contender: Contender, record: ArmRecord, rate: float | None) -> str:
    """Why a record is not one of this contender; empty if it is."""
    try:
        then = parse(record.config)
    except ConfigError as error:
        return error.problems[0]
    if rate is None and contender.rates:
        rate = then.local.lr  # whatever grid it came from
    now = parse(portable(contender.course.begin(contender.config_at(then.seed, rate))))
    for key, (old, new) in differences(contender.course.begin(then), now).items():
        if key not in _ELSEWHERE and not key.startswith("engine."):
            return f"{key}: {old} then, {new} now"
    if not contender.course.ends_with(then):
        return f"train.rounds: {then.train.rounds}, where no run of this course ends"
    return ""


def missing_seeds(contender: Contender, record: ArmRecord | None) -> list[int]:
    """The seeds that have not been run."""
    seeds_there = set() if record is None else {run.seed for run in record.runs}
    return [seed for seed in contender.seeds if seed not in seeds_there]


def with_runs(record: ArmRecord | None, new: ArmRecord) -> ArmRecord:
    """Earlier and new runs of a contender in one record, in order of their seeds."""
    runs: dict[int, SeedRun] = {} if record is None else {run.seed: run for run in record.runs}
    runs |= {run.seed: run for run in new.runs}
    config = new.config if record is None else record.config
    return replace(new, config=config, runs=[runs[seed] for seed in sorted(runs)])


@dataclass
class Outlook:
    """What is left of a plan, in core-seconds as planned, and how long that takes at this pace."""

    planned: float  # what is left at the beginning, if every run is flat as soon as anybody asks
    console: Console  # where it is told
    clock: Callable[[], float] = time.monotonic  # seconds, from any beginning
    seconds_done: float = 0.0
    begin: float = field(init=False)

    def __post_init__(self) -> None:
        """It begins now."""
        self.begin = self.clock()

    def add(self, job: Job) -> None:
        """A run that was not planned at the beginning."""
        self.planned += _seconds(job)

    def leave_out(self, job: Job) -> None:
        """A run that was finished before."""
        self.planned -= _seconds(job)

    def book(self, job: Job) -> None:
        """A run has just ended: tell what is left."""
        self.seconds_done += _seconds(job)
        self.console.print(f"{job.folder.path.parent.name}, seed {job.config.seed}: {self.tell()}")

    def beyond(self, jobs: Sequence[Job]) -> float:
        """What is left of the plan after some jobs, in core-seconds."""
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
    """What contenders take at least, beyond what is recorded, in core-seconds."""
    seconds = 0.0
    for contender in contenders:
        count = len(missing_seeds(contender, read_earlier(contender, records)))
        seconds += count * contender.course.shortest * contender.seconds
        if count and read_earlier_rates(contender, records) is None:
            seconds += contender.tuning_seconds
    return seconds


def converge(
    runner: Runner, contenders: Sequence[Contender], records: Path, outlook: Outlook | None = None
) -> dict[str, ArmRecord]:
    """Choose rates and run everything; what is recorded already is not run again.

    Each seed goes through all contenders, in their order. A run that ends is added to the records
    at once. Without an outlook these contenders are the whole plan. Returns records by slug.
    """
    outlook = outlook or Outlook(seconds_left(contenders, records), runner.console)
    seeds = {c.slug: missing_seeds(c, read_earlier(c, records)) for c in contenders}
    waiting = [contender for contender in contenders if seeds[contender.slug]]
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
    owners = {job.folder.path: contender for contender in waiting for job in jobs[contender.slug]}
    by_seed = sorted(
        (job for own_jobs in jobs.values() for job in own_jobs), key=attrgetter("config.seed")
    )
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


def keep_run(contender: Contender, job: Job, records: Path) -> None:
    """Add a finished run to the record of its contender."""
    record = ArmRecord.of(contender.slug, [job.folder])
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


def choose_rates(
    runner: Runner, contenders: Sequence[Contender], records: Path, outlook: Outlook
) -> dict[str, float]:
    """The learning rate of every contender that has a grid; tried where there is no table yet.

    Where the best rate is at the edge of a grid, half or twice of it is tried, too, and once more;
    not for contenders that have runs already.
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
