"""Scores of a state: those in the line of a round, and the full scores of a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from torch import Tensor

from submodel.algorithm.evaluation import (
    ClientScore,
    capacity_models,
    client_tests,
    evaluate_capacities,
    evaluate_model,
    evaluate_parts,
    measure_moments,
    score_clients,
    some,
    worst_quarter,
)
from submodel.algorithm.execution import ALONE, Group
from submodel.algorithm.types import State
from submodel.core.errors import CallbackError, ConfigError
from submodel.data import Examples
from submodel.model.cut import WHOLE, cut_digest
from submodel.model.norm import StaticBatchNorm, Statistics
from submodel.runs.folder import FullScores
from submodel.runs.metrics import TEST_BATCH_KEY, Metrics
from submodel.runs.training import Training
from submodel.tasks.task import LOSS


def scores(
    training: Training, state: State, group: Group, norms: dict[str, Tensor] | None = None
) -> Metrics:
    """Compute loss and metrics by part and by capacity, as configured, and the user's metrics.

    The statistics of static norms are added to ``norms``, by the digest of the cut.
    """
    setup, settings = training.scored_setup_at(state), training.config.train
    device = training.device
    parts = scored_parts(training)
    small = capacity_models(setup, state) if settings.evaluate_capacities else {}
    models = [(state.tensors, WHOLE), *small.values()]
    rows = measure_moments(setup, models, device, group.spread)
    if norms is not None:
        keys = [cut_digest(cut) for _, cut in models]
        norms |= {k: row for k, row in zip(keys, rows, strict=True) if k and row is not None}
    part_scores = evaluate_parts(
        setup, state, list(parts.values()), device=device, spread=group.spread, rows=rows[0]
    )
    values: Metrics = {}
    for name, score in zip(parts, part_scores, strict=True):
        values |= {f"{name}_{entry}": value for entry, value in score.entries().items()}
    if settings.evaluate_capacities:
        by_capacity = evaluate_capacities(
            setup,
            state,
            part_scores[0],
            device,
            group.spread,
            dict(zip(small, rows[1:], strict=True)),
        )
        for entry in _headline_entries(training):
            values[f"capacity_{entry}"] = {
                f"{c:g}": s.entries()[entry] for c, s in by_capacity.items()
            }
    if settings.evaluate_clients != "no":
        tests, model = training.client_tests, settings.evaluate_clients
        rows_of_clients = score_clients(setup, state, tests, model, device, group.spread)
        values |= client_entries(training, rows_of_clients)
    return values | _own_metrics(training, state)


def scored_parts(training: Training) -> dict[str, Examples]:
    """Return the examples to score a global model on, by the name of the part."""
    setup, settings = training.setup, training.config.train
    data = setup.clients.dataset
    parts = {"test": data.test}
    if settings.evaluate_train:
        parts["train_eval"] = some(data.train, settings.evaluate_train_examples, setup.seed)
    if data.held_out is not None:
        parts["held_out"] = data.held_out
    return parts


def _headline_entries(training: Training) -> list[str]:
    """List the scores to give by capacity: the headline and explicitly configured metrics."""
    is_configured = training.config.task.metrics is not None
    configured = list(training.setup.metrics) if is_configured else []
    return list(dict.fromkeys((training.setup.headline, *configured)))


def client_entries(training: Training, client_rows: Sequence[ClientScore]) -> Metrics:
    """Summarise clients' scores: their mean, the worst quarter, and the mean by capacity."""
    setup = training.setup
    entries: Metrics = {"client_count": len(client_rows)}
    for entry in dict.fromkeys((*_headline_entries(training), LOSS)):
        higher = entry != LOSS and setup.metrics[entry].higher_is_better
        values_by_capacity: dict[float, list[float]] = {}
        for client in client_rows:
            value = client.score.entries()[entry]
            values_by_capacity.setdefault(client.capacity, []).append(value)
        values = [value for some_values in values_by_capacity.values() for value in some_values]
        entries[f"client_{entry}"] = {
            "mean": fmean(values),
            "worst_quarter": worst_quarter(values, higher),
            "capacity": {
                f"{capacity:g}": fmean(values_by_capacity[capacity])
                for capacity in sorted(values_by_capacity, reverse=True)
            },
        }
    return entries


def _own_metrics(training: Training, state: State) -> Metrics:
    """Compute the user's metrics of the global model; None for a value that is not finite."""
    values: Metrics = {}
    for name, metric in training.metrics.items():
        try:
            value = float(metric(training.model(state), training.setup.clients.dataset))
        except Exception as error:
            raise CallbackError(
                f"metric {name!r} fails after round {state.round}: {type(error).__name__}: {error}"
            ) from error
        values[name] = value if math.isfinite(value) else None
    return values


def score_in_full(training: Training, state: State, model_sha256: str) -> FullScores:
    """Score a trained model on all training and test examples, by capacity and by client.

    Norms use the statistics of the run's evaluations. Clients are scored with the sub-models of
    their capacities, if they have test examples or labels of their own.
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
    """Score the whole model with the batch statistics of each test batch."""
    setup = training.setup_at(state)
    if not any(isinstance(layer, StaticBatchNorm) for layer in setup.module.modules()):
        return {}
    by_batch = replace(setup, statistics=Statistics("test_batch"))
    accuracy = evaluate_model(by_batch, state, device=training.device).accuracy
    return {} if accuracy is None else {TEST_BATCH_KEY: accuracy}
