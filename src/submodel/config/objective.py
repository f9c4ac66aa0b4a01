"""The task of a run, its loss and metrics, and the settings that follow from the data."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from torch import nn

from submodel.algorithm.score import BATCH
from submodel.config import Config
from submodel.config.checks import metric_problems, simplify
from submodel.config.parts import settle_clients
from submodel.core.errors import ConfigError
from submodel.data import Dataset, Partition
from submodel.data.partitions import DEFAULT_LABELS, Natural
from submodel.data.parts import are_labels, count_classes
from submodel.tasks.builtin_tasks import LOSSES, METRICS, TASKS, AbsentLabels
from submodel.tasks.loss import Loss
from submodel.tasks.metrics import MetricContext
from submodel.tasks.task import LOSS, TaskContext, TaskKind, task_for

_log = logging.getLogger(__name__)
_TRIED = 2  # examples


def make_task(config: Config, data: Dataset, loss: Loss | None = None) -> TaskKind:
    """Make the task of a configuration for a dataset; ``loss``: a loss given in Python."""
    section = config.task
    if loss is not None and section.loss is not None:
        raise ConfigError(
            f"task.loss: {section.loss!r} conflicts with the loss given in Python; remove one"
        )
    if loss is None and section.loss is not None:
        loss = LOSSES.find(section.loss).make(section)
    text, table = data.text, data.table
    target = None if table is None else table.target
    facts = MetricContext(
        classes=data.classes if text is None else text.vocabulary,
        bytes_per_token=None if text is None else text.bytes_per_token,
        unit=1.0 if target is None else target.deviation,
    )
    context = TaskContext(loss, section.metrics, facts, task_for(data))
    task = TASKS.find(section.name).make(section, context)
    return replace(task, loss=simplify(task.loss, data))


def fit_metrics(config: Config, task: TaskKind, module: nn.Module, data: Dataset) -> TaskKind:
    """Keep the metrics of a task that the model's outputs on the data allow.

    Default metrics of the task that fail are dropped with a warning; a failing metric that the
    configuration requests raises `ConfigError`.
    """
    asked = config.task.metrics or ()
    count = _TRIED if all(map(METRICS.is_builtin, asked)) else BATCH
    problems = metric_problems(module, data.test, task.metrics, count)
    if problems and config.task.metrics is not None:
        raise ConfigError([f"task.metrics: {name!r}: {why}" for name, why in problems.items()])
    if problems:
        reasons = [f"{name} ({why})" for name, why in problems.items()]
        _log.warning("metrics left out: %s", "; ".join(reasons))
    return keep_metrics(task, task.metrics.keys() - problems.keys())


def keep_metrics(task: TaskKind, names: Collection[str]) -> TaskKind:
    """Restrict a task to the named metrics; the loss replaces a dropped headline metric."""
    metrics = {name: metric for name, metric in task.metrics.items() if name in names}
    headline = task.headline if task.headline in metrics else LOSS
    return replace(task, metrics=metrics, headline=headline)


def apply_task(task: TaskKind, data: Dataset) -> Dataset:
    """Replace the targets of the data by those that the task trains and scores on."""
    train, test = task.examples(data.train), task.examples(data.test)
    classes = data.classes
    if train.y is not data.train.y:
        is_labelled = are_labels(train.y) and are_labels(test.y)
        classes = count_classes(train.y, test.y) if is_labelled else None
    held_out = None if data.held_out is None else task.examples(data.held_out)
    return replace(data, train=train, test=test, classes=classes, held_out=held_out)


def settle(config: Config, data: Dataset, is_plain: bool, split: bool = True) -> Config:
    """Fill in the settings of a configuration that follow from the data.

    Args:
        config: the configuration as given.
        data: the examples.
        is_plain: whether targets are class labels and the loss is their cross-entropy.
        split: whether the data is partitioned here, instead of given as lists of examples.
    """
    if config.local.absent_labels == "auto":
        absent: AbsentLabels = "leave_out" if is_plain else "keep"
        local = config.local.model_copy(update={"absent_labels": absent})
        config = config.model_copy(update={"local": local})
    return settle_clients(config, data) if split else config


def default_lines(given: Config, settled: Config, partition: Partition) -> list[str]:
    """List the defaults that `settle` changed because the data is small, as ``key = value``."""
    lines = []
    if not isinstance(partition, Natural):
        lines = [
            f"clients.{key} = {getattr(settled.clients, key):g}"
            for key in ("count", "per_round")
            if getattr(settled.clients, key) != getattr(given.clients, key)
        ]
    labels = getattr(partition, "labels_per_client", None)
    if labels is not None and labels < DEFAULT_LABELS and given.data.labels_per_client is None:
        lines.append(f"data.labels_per_client = {labels}")
    return lines
