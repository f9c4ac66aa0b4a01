"""Runner of many configurations, several at once, each in a folder that can be resumed."""

from __future__ import annotations

import json
import os
import platform
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from submodel.comparison.outline import ExperimentProgress, PlannedRun, mark_active
from submodel.comparison.records import ArmRecord
from submodel.config import Config, to_toml
from submodel.core.errors import ConfigError, SubmodelError
from submodel.core.extras import needs_extra
from submodel.engines.processes.launch import Follower, Followers
from submodel.runs.folder import RunFolder, read_full_scores
from submodel.runs.loop import Interruption

SCORE = "held_out_accuracy"
"""Metric that decides whether a run is flat; it uses no test example."""
_POLL, _UPDATE = 0.02, 0.5  # seconds
_DIVERGENCE = " may help"  # the errors of diverged runs end with it


@dataclass(frozen=True)
class FlatRule:
    """Rule for a flat curve: the last window's mean exceeds the one before by less than a rise.

    A single evaluation varies by points from round to round if clients have few labels; means over
    a window do not. A falling curve is flat, too: more rounds would not help.
    """

    window: int = 8  # number of evaluations per mean
    rise: float = 0.005  # smallest increase that still counts as a rise, of a score up to 1

    def last_rise(self, scores: Sequence[float]) -> float | None:
        """Return how much the last window exceeds the one before; None: too few evaluations.

        >>> FlatRule(window=2).last_rise([0.1, 0.2, 0.3, 0.5, 0.5])
        0.25
        """
        if len(scores) < 2 * self.window:
            return None
        before = scores[-2 * self.window : -self.window]
        return fmean(scores[-self.window :]) - fmean(before)

    def holds(self, scores: Sequence[float]) -> bool:
        """Whether the curve is flat at its end; false with fewer than two windows.

        >>> rule = FlatRule(window=2, rise=0.01)
        >>> rule.holds([0.1, 0.3, 0.3, 0.305, 0.305]), rule.holds([0.1, 0.2, 0.3, 0.4])
        (True, False)
        >>> rule.holds([0.5, 0.5])
        False
        """
        rise = self.last_rise(scores)
        return rise is not None and rise < self.rise

    def describe(self, every: int) -> str:
        """Describe the rule.

        >>> FlatRule().describe(every=25)
        'the mean of 8 evaluations (200 rounds) exceeds that of the 8 before by under 0.5 points'
        """
        return (
            f"the mean of {self.window} evaluations ({self.window * every} rounds) exceeds that "
            f"of the {self.window} before by under {100 * self.rise:g} points"
        )


@dataclass(frozen=True)
class Course:
    """Length of a run to convergence."""

    least: int  # rounds before the curve is tested for flatness
    most: int  # maximum number of rounds, flat or not
    step: int  # rounds added while the curve is not flat
    # rounds after that at a lower learning rate, so that the noise of the last iterate does not
    # decide; 0: none
    final: int
    rule: FlatRule = field(default_factory=FlatRule)
    decay: float = 0.1  # factor of the learning rate in the final rounds

    def begin(self, config: Config) -> Config:
        """Return the configuration that a run begins with."""
        if config.data.held_out is None and self.least < self.most:
            raise ConfigError("data.held_out: decides when a run is flat; set it, as 0.05")
        local = config.local.with_values(schedule="constant")
        train = config.train.with_values(rounds=self.least)
        return config.model_copy(update={"local": local, "train": train})

    def next_settings(
        self, config: Config, history: Sequence[Mapping[str, Any]]
    ) -> list[str] | None:
        """Return the settings to resume a run with after its rounds; None if it is complete."""
        rounds = config.train.rounds
        if config.local.schedule != "constant":
            return None
        if rounds < self.most and not self.is_flat(history):
            return [f"train.rounds={min(self.most, rounds + self.step)}"]
        if not self.final:
            return None
        return [
            f"train.rounds={rounds + self.final}",
            "local.schedule=step",
            f"local.milestones=[{rounds}]",
            f"local.decay={self.decay:g}",
        ]

    def is_flat(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the curve is flat by the evaluations before the final rounds."""
        return self.rule.holds([line[SCORE] for line in history if SCORE in line])

    def was_flat(self, config: Config, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether a complete run was flat before its final rounds."""
        milestones = getattr(config.local, "milestones", None) or [config.train.rounds]
        return self.is_flat([line for line in history if line["round"] <= milestones[0]])

    def ends_with(self, config: Config) -> bool:
        """Whether a run of this course may end with the given configuration."""
        rounds = config.train.rounds - self.final
        if not (rounds == self.most or rounds in range(self.least, self.most, self.step)):
            return False
        if not self.final:
            return config.local.schedule == "constant"
        local = config.local
        return local.schedule == "step" and (local.milestones, local.decay) == (
            [rounds],
            self.decay,
        )

    @property
    def longest(self) -> int:
        """Maximum number of rounds of a run."""
        return self.most + self.final

    @property
    def shortest(self) -> int:
        """Minimum number of rounds of a run."""
        return self.least + self.final


@dataclass(frozen=True)
class Effort:
    """Processor time of the commands of a run."""

    core_seconds: float | None = None  # None: not measured
    machine: str | None = None  # machine of the last command; None: unknown


@dataclass(frozen=True)
class EffortFile:
    """File with the processor time of each command of a run; an interrupted run has several."""

    path: Path

    def add(self, core_seconds: float | None) -> None:
        """Append the processor time of a command that has ended."""
        if core_seconds is None:
            return
        entry = {"core_seconds": round(core_seconds, 2), "machine": describe_machine()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def read(self) -> Effort:
        """Sum the processor time; empty if none was measured or the file is damaged."""
        if not self.path.is_file():
            return Effort()
        try:
            entries = [
                Effort(**json.loads(line)) for line in self.path.read_text("utf-8").splitlines()
            ]
        except (ValueError, TypeError):
            return Effort()
        seconds = sum(entry.core_seconds or 0.0 for entry in entries)
        return Effort(round(seconds, 2), entries[-1].machine) if entries else Effort()


def sum_known(files: Iterable[EffortFile]) -> float | None:
    """Sum the processor time of several runs; None if one was not measured."""
    efforts = [file.read().core_seconds for file in files]
    known_efforts = [seconds for seconds in efforts if seconds is not None]
    return round(sum(known_efforts), 2) if len(known_efforts) == len(efforts) else None


def describe_machine() -> str:
    """Describe the processor and the number of cores."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text("utf-8").splitlines()
        name = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
            name,
        )
    return f"{name}, {os.cpu_count()} cores"


@dataclass(frozen=True)
class Job:
    """A run to execute: its configuration and folder."""

    config: Config  # initial configuration
    folder: RunFolder
    course: Course | None = None  # None: it ends after the configured rounds
    is_scored: bool = False  # whether its result is scored in full at the end
    seconds: float = 1.0  # expected seconds per round, for estimates of the remaining time

    @property
    def is_finished(self) -> bool:
        """Whether no work is left."""
        return self.folder.config_file.exists() and self._next() is None

    def command(self) -> list[str]:
        """Return the arguments of ``submodel`` that begin or continue the run."""
        if self.folder.config_file.exists():
            return self._next() or ["show", str(self.folder.path)]
        config = self.folder.path.with_suffix(".toml")
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(to_toml(self.config), "utf-8")
        return ["train", str(config), "--out", str(self.folder.path)]

    def _next(self) -> list[str] | None:
        """Return the arguments that continue a run that has begun; None if it is finished."""
        path = str(self.folder.path)
        if not self.folder.finished():
            return ["resume", path]
        if self.course is not None:
            config = self.folder.config()
            settings = self.course.next_settings(config, self.folder.metrics())
            if settings is not None:
                return ["resume", path, *(word for text in settings for word in ("--set", text))]
        if self.is_scored and read_full_scores(self.folder) is None:
            return ["score", path]
        return None

    @property
    def log_file(self) -> Path:
        """Path of the log of its commands."""
        return self.folder.path.with_suffix(".log")

    @property
    def effort(self) -> EffortFile:
        """File with the processor time of its commands."""
        return EffortFile(self.folder.path.with_suffix(".effort.jsonl"))

    def rounds_done(self) -> int:
        """Count the finished rounds; lines are not parsed, because this is called often."""
        file = self.folder.metrics_file
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def rounds_expected(self, rounds_done: int) -> int:
        """Estimate the total number of rounds."""
        if self.course is None:
            return self.config.train.rounds
        return max(self.course.shortest, rounds_done)


def comparable(config: Config, course: Course | None = None) -> Config:
    """Reduce a configuration to everything that the result depends on: no engine, no progress."""
    config = config if course is None else course.begin(config)
    return config.model_copy(update={"engine": Config().engine})


@dataclass
class Runner:
    """Runner of named configurations, each with several seeds; it reads their records."""

    out: Path
    parallel: int
    console: Console = field(default_factory=Console)

    def job(
        self,
        slug: str,
        config: Config,
        course: Course | None = None,
        *,
        is_scored: bool = False,
        seconds: float = 1.0,
    ) -> Job:
        """Make the job of one run; raise if its folder contains another configuration."""
        if course is not None:
            config = course.begin(config)
        folder = RunFolder(self.out / "runs" / slug / f"seed-{config.seed}")
        if folder.config_file.exists():
            then = comparable(folder.config(), course)
            if then != comparable(config):
                raise SubmodelError(
                    f"{folder.path} contains a run of another configuration; give another --out"
                )
        return Job(config, folder, course, is_scored, seconds)

    def run(self, configs: Mapping[str, Sequence[Config]]) -> list[ArmRecord]:
        """Run all unfinished configurations, given by name and seed; return all records."""
        jobs = {
            slug: [self.job(slug, c) for c in seed_configs]
            for slug, seed_configs in configs.items()
        }
        # seed by seed, so that an interrupted experiment has results of every arm
        self.run_jobs([job for together in zip(*jobs.values(), strict=True) for job in together])
        return [
            ArmRecord.of(slug, [job.folder for job in seed_jobs])
            for slug, seed_jobs in jobs.items()
        ]

    def run_jobs(
        self,
        jobs: Sequence[Job],
        *,
        may_diverge: bool = False,
        when_ended: Callable[[Job], None] | None = None,
        work_before: float = 0.0,
        work_beyond: float = 0.0,
    ) -> None:
        """Run all unfinished jobs, in this order, several at a time.

        Raises `Interruption` if stopped, and `SubmodelError` at the end if runs failed. With
        ``may_diverge``, diverged runs are not failures and stay unfinished; ``when_ended`` is
        called for them too. The work before and after these jobs, in core-seconds, is written to
        the progress file for observers.
        """
        with needs_extra("server", "a report"):  # fail now, not after hours
            import matplotlib  # noqa: F401
            import scipy  # noqa: F401
        waiting = [job for job in jobs if not job.is_finished]
        progress = self._progress_of(jobs, waiting, work_before, work_beyond)
        if jobs:
            progress.write(self.out)

        def note_end(job: Job) -> None:
            nonlocal progress
            if when_ended is not None:
                when_ended(job)
            progress = progress.with_end(self._place(job))
            progress.write(self.out)

        if waiting:
            with mark_active(self.out):
                self._run(waiting, may_diverge, note_end)

    def _place(self, job: Job) -> str:
        return job.folder.path.relative_to(self.out).as_posix()

    def _progress_of(
        self, jobs: Sequence[Job], waiting: Sequence[Job], before: float, beyond: float
    ) -> ExperimentProgress:
        """Make the progress to write when some jobs begin."""
        waiting_paths = {job.folder.path for job in waiting}
        return ExperimentProgress(
            time.time(),
            self.parallel,
            tuple(
                PlannedRun(
                    self._place(job),
                    job.rounds_expected(0),
                    job.seconds,
                    has_ended=job.folder.path not in waiting_paths,
                )
                for job in jobs
            ),
            work_at_begin=sum(job.rounds_done() * job.seconds for job in jobs),
            work_before=before,
            work_beyond=beyond,
            has_estimates=any(job.seconds != 1 for job in jobs),
        )

    def _run(
        self, waiting: list[Job], may_diverge: bool, when_ended: Callable[[Job], None]
    ) -> None:
        running: dict[Follower, Job] = {}
        failures: list[str] = []
        stages: dict[Path, list[str]] = {}  # the last command of each run
        queue = list(waiting)
        with Followers() as followers:
            try:
                with self._progress(waiting) as update:
                    while queue or running:
                        while queue and len(running) < self.parallel:
                            job = queue.pop(0)
                            stages[job.folder.path] = job.command()
                            running[_start(followers, job)] = job
                        _wait_a_moment(running)
                        for process in [p for p in running if p.poll() is not None]:
                            job = running.pop(process)
                            job.effort.add(process.core_seconds)
                            if process.wait() or stages.get(job.folder.path) == job.command():
                                reason = _reason(job)
                                if may_diverge and _DIVERGENCE in reason:
                                    when_ended(job)
                                else:
                                    failures.append(f"{job.folder.path}: {reason}")
                            elif job.is_finished:
                                when_ended(job)
                            else:
                                queue.insert(0, job)  # its next stage
                        update([*running.values()], len(queue) + len(running))
            except KeyboardInterrupt:
                raise Interruption("stopped; the same command continues from here") from None
            finally:
                for process in running:
                    process.send_signal(signal.SIGTERM)  # saves its last round
                for process, job in running.items():
                    process.wait()
                    job.effort.add(process.core_seconds)
        if failures:
            raise SubmodelError(f"{len(failures)} of {len(waiting)} runs failed; {failures[0]}")

    @contextmanager
    def _progress(self, jobs: Sequence[Job]) -> Iterator[Callable[[Sequence[Job], int], None]]:
        """Show a progress bar; yield the function that updates it."""
        unit = "rounds" if all(job.seconds == 1 for job in jobs) else "core-seconds as planned"
        rounds = {job.folder.path: job.rounds_done() for job in jobs}
        columns = (
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
            *(TextColumn(unit), TimeRemainingColumn()),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task("", total=None)

            def update(running: Sequence[Job], runs_left: int) -> None:
                for job in running:
                    rounds[job.folder.path] = job.rounds_done()
                rounds_done = sum(rounds[job.folder.path] * job.seconds for job in jobs)
                rounds_expected = sum(
                    job.rounds_expected(rounds[job.folder.path]) * job.seconds for job in jobs
                )
                text = f"{len(jobs) - runs_left} of {len(jobs)} runs"
                progress.update(
                    task, total=rounds_expected, completed=rounds_done, description=text
                )

            update([], len(jobs))
            yield update
            update(jobs, 0)


def _start(followers: Followers, job: Job) -> Follower:
    command = job.command()
    with job.log_file.open("a", encoding="utf-8") as log:
        return followers.start(command, os.environ, log.fileno())


def _wait_a_moment(running: Iterable[Follower]) -> None:
    """Wait until a process has ended or the progress must be updated."""
    deadline = time.monotonic() + _UPDATE
    while time.monotonic() < deadline and all(process.poll() is None for process in running):
        time.sleep(_POLL)


def _reason(job: Job) -> str:
    lines = job.log_file.read_text("utf-8").strip().splitlines()
    return lines[-1] if lines else "without a message"
