"""All that can be scored of a finished run: every part in full, every capacity, every client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from submodel.algorithm.evaluation import client_tests, evaluate_model, score_clients
from submodel.algorithm.execution import ALONE
from submodel.algorithm.types import State
from submodel.errors import ConfigError
from submodel.files import UnreadableError, read_typed, write_text
from submodel.model.norm import StaticBatchNorm, Statistics
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import TEST_BATCH_KEY, Metrics
from submodel.runs.scoring import client_entries, scores
from submodel.runs.training import Training

_MOST = 2**26  # bytes of the file


@dataclass(frozen=True)
class FullScores:
    """The scores of a trained model, and whose they are.

    Args:
        model_sha256: of the model that was scored.
        entries: as an evaluated round's line has them.
        clients: the capacity and the headline score of every client that can be scored.
    """

    model_sha256: str
    entries: dict[str, Any]
    clients: Sequence[tuple[float, float]] = ()

    def write(self, folder: RunFolder) -> None:
        """Keep them in the run's folder."""
        write_text(folder.scores_file, json.dumps(asdict(self), indent=1) + "\n")


_SCORES = TypeAdapter(FullScores)


def read_full_scores(folder: RunFolder) -> FullScores | None:
    """Those that are kept in a run's folder; None where there are none of its present model."""
    summary = folder.summary()
    if summary is None or not folder.scores_file.is_file():
        return None
    try:
        full_scores = read_typed(_SCORES, folder.scores_file, _MOST)
    except UnreadableError:
        return None  # it is made again
    return full_scores if full_scores.model_sha256 == summary["model_sha256"] else None


def score_in_full(training: Training, state: State, model_sha256: str) -> FullScores:
    """Score a trained model on all training and test examples, by capacity and by client.

    Statistics of norms are those that the run evaluates with. Clients are scored by the sub-models
    of their capacities, where anything tells their test examples apart.

    Args:
        training: the run.
        state: its result.
        model_sha256: the hash of that.
    """
    wider = training.config.train.with_values(
        evaluate_train=True,
        evaluate_train_examples=None,
        evaluate_capacities=True,
        evaluate_clients="no",
    )
    config = training.config.model_copy(update={"train": wider})
    in_full = Training(config, training.setup, training.engine, training.metrics)
    entries: Metrics = scores(in_full, state, ALONE) | _by_test_batch(training, state)
    try:
        tests = client_tests(training.setup.clients, training.setup.population.count)
    except ConfigError:
        return FullScores(model_sha256, entries)
    rows = score_clients(training.scored_setup_at(state), state, tests, "submodel", training.device)
    headline = training.setup.headline
    pairs = [(row.capacity, row.score.entries()[headline]) for row in rows]
    return FullScores(model_sha256, entries | client_entries(in_full, rows), pairs)


def _by_test_batch(training: Training, state: State) -> Metrics:
    """How the whole model would score if its norms went by each batch of test examples."""
    setup = training.setup_at(state)
    if not any(isinstance(layer, StaticBatchNorm) for layer in setup.module.modules()):
        return {}
    by_batch = replace(setup, statistics=Statistics("test_batch"))
    accuracy = evaluate_model(by_batch, state, device=training.device).accuracy
    return {} if accuracy is None else {TEST_BATCH_KEY: accuracy}
