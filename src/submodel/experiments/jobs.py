"""One run of many: its configuration, its folder, and what is to be done next for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from submodel.config import Config, to_toml
from submodel.experiments.course import Course
from submodel.experiments.effort import EffortFile
from submodel.runs.folder import RunFolder
from submodel.runs.scoring import read_full_scores


@dataclass(frozen=True)
class Job:
    """One run: its configuration and where it is.

    Args:
        config: what it begins with.
        folder: where it is.
        course: how it goes on when its rounds are done; None: it is finished then.
        is_scored: whether its result is scored in full at the end.
        seconds: what a round is expected to take, to tell how much is left of several.
    """

    config: Config
    folder: RunFolder
    course: Course | None = None
    is_scored: bool = False
    seconds: float = 1.0

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.folder.config_file.exists() and self._next() is None

    def command(self) -> list[str]:
        """Begin it, or go on with it: what follows ``submodel``."""
        if self.folder.config_file.exists():
            return self._next() or ["show", str(self.folder.path)]
        config = self.folder.path.with_suffix(".toml")
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(to_toml(self.config), "utf-8")
        return ["train", str(config), "--out", str(self.folder.path)]

    def _next(self) -> list[str] | None:
        """How a run that has begun goes on; None: it does not."""
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
        """What its commands say."""
        return self.folder.path.with_suffix(".log")

    @property
    def effort(self) -> EffortFile:
        """What its commands took."""
        return EffortFile(self.folder.path.with_suffix(".effort.jsonl"))

    def rounds_done(self) -> int:
        """How many rounds have a line; read without looking into them, as it is asked often."""
        file = self.folder.metrics_file
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def rounds_expected(self, rounds_done: int) -> int:
        """How many it will have, as far as can be told.

        Args:
            rounds_done: how many it has.
        """
        if self.course is None:
            return self.config.train.rounds
        return max(self.course.shortest, rounds_done)


def comparable(config: Config, course: Course | None = None) -> Config:
    """What the result depends on: not where it is computed, nor how far a course has come.

    Args:
        config: of a run.
        course: of the run, if it has one.
    """
    config = config if course is None else course.begin(config)
    return config.model_copy(update={"engine": Config().engine})
