"""Where a run begins: with an untrained model, or where its folder stands."""

from __future__ import annotations

import logging

from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import State
from submodel.errors import CheckpointError
from submodel.model.build import can_release
from submodel.runs import checkpoint
from submodel.runs.data_record import DataRecord, write_record
from submodel.runs.finishing import rank_by_place
from submodel.runs.folder import RunFolder
from submodel.runs.holdings_file import keep_holdings
from submodel.runs.metrics import Metrics
from submodel.runs.subject import Fingerprints
from submodel.runs.training import Training

_log = logging.getLogger(__name__)


def _check_untrained(folder: RunFolder) -> None:
    """Raise `CheckpointError` where a run without checkpoints has rounds that would be lost."""
    rounds = max(folder.rounds(), (folder.summary() or {}).get("rounds", 0))
    if rounds:
        raise CheckpointError(
            f"{folder.path}: {rounds} rounds are done, and no checkpoint is left to go on from: "
            f"put {folder.checkpoints} back, or begin again: 'submodel train "
            f"{folder.config_file} --out {folder.path} --force' (in Python: submodel.train(..., "
            f"out={str(folder.path)!r}, overwrite=True))"
        )


def start(
    training: Training,
    folder: RunFolder | None,
    subject: Fingerprints,
    resume: bool,
    follows: bool = False,
) -> tuple[State, list[Metrics]]:
    """The state to go on from, and the lines of the rounds behind it.

    A resumed run takes the newest checkpoint that is whole; one that was killed before its first
    begins again. A process that ``follows`` another need not have values.
    """
    take = training.takes_module and can_release(training.setup.module)
    config, setup = training.config, training.setup
    state = rank_by_place(config, setup, initial_state(setup, take=take, follows=follows))
    if folder is None:
        return state, []
    has_checkpoint = bool(checkpoint.checkpoint_folders(folder.checkpoints))
    if resume and not has_checkpoint:
        _check_untrained(folder)
        if config.engine.name != "flower":  # a server always goes on, also with a new run
            _log.warning("%s: stopped before its first checkpoint: begins at round 1", folder.path)
    if not folder.record_file.is_file():
        write_record(folder, DataRecord.of(training, subject))
    if resume and has_checkpoint:
        state, problems = checkpoint.latest(folder.checkpoints, config, state, subject, into=True)
        for problem in problems:
            _log.warning("passed over %s", problem)
        checkpoint.renew(folder.checkpoints, config, subject)
        folder.go_on_as(config)
    else:
        folder.go_on_as(config)
        checkpoint.save(folder.checkpoints, state, config, subject)
    keep_holdings(folder.holdings_file, state.round)
    if damage := folder.keep_metrics(state.round):
        _log.warning(
            "%s: %s; the model is not affected, but totals and curves are",
            folder.metrics_file,
            damage,
        )
    return state, folder.metrics()
