"""Trackers: callbacks that send a run's metrics somewhere, and that a configuration can name.

The names are in `submodel.config.sections`, as a configuration is read without any code of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from submodel.config import Config
from submodel.config.sections import TRACKERS
from submodel.errors import ConfigError
from submodel.runs.callbacks.base import Callback
from submodel.runs.callbacks.guard import CallbackGuard

__all__ = ["TRACKERS", "TrackerContext", "trackers_of"]


@dataclass(frozen=True)
class TrackerContext:
    """The run that a tracker is made for.

    Args:
        config: its configuration.
        folder: where it writes; None: a run in Python that writes nothing.
    """

    config: Config
    folder: Path | None

    def needed_folder(self, tracker: str) -> Path:
        """The folder, for trackers that write into it.

        Args:
            tracker: its name, for the error where there is none.
        """
        if self.folder is None:
            raise ConfigError(
                [f"{TRACKERS.key}: {tracker!r} writes into the run's folder; give out="]
            )
        return self.folder


def trackers_of(config: Config, folder: Path | None) -> list[Callback]:
    """The trackers that a configuration names, guarded as callbacks of the user's are.

    Args:
        config: of the run.
        folder: where the run writes, if it does.
    """
    trackers: list[Callback] = []
    problems: list[str] = []
    for name in config.train.trackers:
        try:
            trackers.append(CallbackGuard(_make_tracker(name, TrackerContext(config, folder))))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return trackers


def _make_tracker(name: str, context: TrackerContext) -> Callback:
    """One tracker; a list of names leaves no place for keys, so all of its keys have defaults."""
    component = TRACKERS.find(name)
    try:
        options = component.options()
    except ValidationError as error:
        keys = ", ".join(str(part) for problem in error.errors() for part in problem["loc"])
        raise ConfigError(
            [f"{TRACKERS.key}: {name!r} cannot be made: {keys} is missing, and has no default"]
        ) from None
    return cast(Callback, component.make(options, context))
