"""What happens around the rounds of a run: one protocol, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from submodel.engines.processes.group import ProcessGroup
from submodel.runs.callbacks.base import Callback
from submodel.runs.callbacks.books import DeviceBooks, KeepsBooks
from submodel.runs.callbacks.checkpoint import Checkpoint
from submodel.runs.callbacks.curves import Curves
from submodel.runs.callbacks.evaluate import Evaluate
from submodel.runs.callbacks.guard import CallbackGuard
from submodel.runs.callbacks.holdings_file import HoldingsFile
from submodel.runs.callbacks.metrics_file import MetricsFile
from submodel.runs.callbacks.several import Several
from submodel.runs.callbacks.tell import OnRound, Tell
from submodel.runs.callbacks.trackers import trackers_of
from submodel.runs.folder import RunFolder
from submodel.runs.subject import Fingerprints

if TYPE_CHECKING:
    from submodel.runs.training import Training

__all__ = ["Callback", "CallbackGuard", "OnRound", "Several", "Tell", "callbacks_of"]


def callbacks_of(
    training: Training,
    folder: RunFolder | None,
    subject: Fingerprints,
    group: ProcessGroup | None = None,
    more: Sequence[Callback] = (),
) -> Several:
    """All callbacks of a run in this process, in the order that keeps it resumable.

    Measuring comes before the line is written, the line before its checkpoint, and trackers and
    whatever else was given (``more``) after both; of a group of processes they are for the first
    alone.
    """
    members: list[Callback] = []
    if isinstance(training.engine, KeepsBooks):
        members.append(DeviceBooks(training.engine))
    members.append(Evaluate(group, folder))
    if folder is not None:
        members.append(MetricsFile(folder))
        members.append(HoldingsFile(folder))
        members.append(Checkpoint(training, folder, subject))
        members.append(Curves(folder, training.config.name))
    if group is None or group.rank == 0:
        members.extend(trackers_of(training.config, None if folder is None else folder.path))
        members.extend(more)
    return Several(members)
