"""Where a run begins: with an untrained model, or where its folder stands."""

from __future__ import annotations

import logging

from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import State
from submodel.model.build import can_release
from submodel.runs import checkpoint
from submodel.runs.finishing import rank_by_place
from submodel.runs.folder import RunFolder
from submodel.runs.holdings_file import keep_holdings
from submodel.runs.metrics import Metrics
from submodel.runs.subject import Fingerprints
from submodel.runs.training import Training

_log = logging.getLogger(__name__)


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
    if resume and checkpoint.checkpoint_folders(folder.checkpoints):
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
