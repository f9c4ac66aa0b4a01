"""The scores of a state, as they stand in the metrics: of the global model and its sub-models."""

from __future__ import annotations

import math

from submodel.algorithm.evaluation import (
    capacity_models,
    evaluate_capacities,
    evaluate_parts,
    measure_moments,
    some,
)
from submodel.algorithm.execution import Group
from submodel.algorithm.types import State
from submodel.errors import CallbackError
from submodel.model.cut import WHOLE
from submodel.runs.metrics import Metrics
from submodel.runs.training import Training


def scores(training: Training, state: State, group: Group) -> Metrics:
    """Loss and metrics by part and by capacity, as configured, and the user's own metrics."""
    setup, settings, device = training.setup, training.config.train, training.device
    data = setup.clients.dataset
    parts = {"test": data.test}
    if settings.evaluate_train:
        parts["train_eval"] = some(data.train, settings.evaluate_train_examples, setup.seed)
    small = capacity_models(setup, state) if settings.evaluate_capacities else {}
    rows = measure_moments(setup, [(state.tensors, WHOLE), *small.values()])
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
        for entry in dict.fromkeys((setup.headline, *_asked_metrics(training))):
            values[f"capacity_{entry}"] = {
                f"{c:g}": s.entries()[entry] for c, s in by_capacity.items()
            }
    return values | _own_metrics(training, state)


def _asked_metrics(training: Training) -> list[str]:
    """The metrics that the user asked for, which are told of every capacity, too."""
    is_asked = training.config.task.metrics is not None
    return list(training.setup.metrics) if is_asked else []


def _own_metrics(training: Training, state: State) -> Metrics:
    """What the user's functions say of the global model; None where that is no finite number."""
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
