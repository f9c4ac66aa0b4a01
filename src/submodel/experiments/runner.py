"""Running many configurations, several at once, each in a folder that can be resumed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from submodel.config import Config, to_toml
from submodel.engines.processes.followers import Follower, Followers
from submodel.errors import SubmodelError
from submodel.experiments.records import VariantRecord
from submodel.extras import needs_extra
from submodel.runs.folder import RunFolder
from submodel.runs.loop import Interruption

_POLL, _TELL = 0.02, 0.5  # seconds


@dataclass(frozen=True)
class Job:
    """One run: its configuration and where it is."""

    config: Config
    folder: RunFolder

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.folder.config_file.exists() and self.folder.finished()

    def command(self) -> list[str]:
        """Begin it, or go on with it: what follows ``submodel``."""
        if self.folder.config_file.exists():
            return ["resume", str(self.folder.path)]
        config = self.folder.path.with_suffix(".toml")
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(to_toml(self.config), "utf-8")
        return ["train", str(config), "--out", str(self.folder.path)]


@dataclass
class Runner:
    """Runs named configurations, each with several seeds, and reads what came out."""

    out: Path
    parallel: int
    console: Console = field(default_factory=Console)

    def job(self, slug: str, config: Config) -> Job:
        """One of the runs of a name; an existing folder must hold the same one."""
        folder = RunFolder(self.out / "runs" / slug / f"seed-{config.seed}")
        if folder.config_file.exists() and _comparable(folder.config()) != _comparable(config):
            raise SubmodelError(
                f"{folder.path} holds a run of another configuration: give another --out"
            )
        return Job(config, folder)

    def run(self, configs: Mapping[str, Sequence[Config]]) -> list[VariantRecord]:
        """Whatever is not finished yet, name -> a configuration per seed; the records of all."""
        with needs_extra("server", "a report"):  # told now, not after hours
            import matplotlib  # noqa: F401
            import scipy  # noqa: F401
        jobs = {
            slug: [self.job(slug, c) for c in seed_configs]
            for slug, seed_configs in configs.items()
        }
        # seed by seed, so that what is interrupted has something of everything
        order = [job for together in zip(*jobs.values(), strict=True) for job in together]
        waiting = [job for job in order if not job.is_finished]
        if waiting:
            self._run(waiting)
        return [
            VariantRecord.of(slug, [job.folder for job in seed_jobs])
            for slug, seed_jobs in jobs.items()
        ]

    def _run(self, waiting: list[Job]) -> None:
        running: dict[Follower, Job] = {}
        failures: list[str] = []
        queue = list(waiting)
        with Followers() as followers:
            try:
                with self._progress(waiting) as update:
                    while queue or running:
                        while queue and len(running) < self.parallel:
                            job = queue.pop(0)
                            running[_start(followers, job)] = job
                        _wait_a_moment(running)
                        for process in [p for p in running if p.poll() is not None]:
                            job = running.pop(process)
                            if process.wait():
                                failures.append(f"{job.folder.path}: {_reason(job)}")
                        update()
            except KeyboardInterrupt:
                raise Interruption("stopped; the same command goes on from here") from None
            finally:
                for process in running:
                    process.send_signal(signal.SIGTERM)  # saves its last round
                for process in running:
                    process.wait()
        if failures:
            raise SubmodelError(f"{len(failures)} of {len(waiting)} runs failed; {failures[0]}")

    @contextmanager
    def _progress(self, jobs: Sequence[Job]) -> Iterator[Callable[[], None]]:
        total = sum(job.config.train.rounds for job in jobs)
        columns = (
            *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()),
            *(TextColumn("rounds"), TimeRemainingColumn()),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task("", total=total)

            def update() -> None:
                finished_count = sum(job.is_finished for job in jobs)
                rounds = sum(len(job.folder.metrics()) for job in jobs)
                text = f"{finished_count} of {len(jobs)} runs"
                progress.update(task, completed=rounds, description=text)

            update()
            yield update
            update()


def _log_of(job: Job) -> Path:
    return job.folder.path.with_suffix(".log")


def _start(followers: Followers, job: Job) -> Follower:
    command = job.command()
    with _log_of(job).open("a", encoding="utf-8") as log:
        return followers.start(command, os.environ, log.fileno())


def _wait_a_moment(running: Iterable[Follower]) -> None:
    """Until one has ended, or it is time to tell how far they are."""
    deadline = time.monotonic() + _TELL
    while time.monotonic() < deadline and all(process.poll() is None for process in running):
        time.sleep(_POLL)


def _reason(job: Job) -> str:
    lines = _log_of(job).read_text("utf-8").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _comparable(config: Config) -> Config:
    """What the result depends on: not where it is computed."""
    return config.model_copy(update={"engine": Config().engine})
