"""The task of a run, its loss and metrics; the settings that follow from the data."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from torch import nn

from submodel.algorithm.score import BATCH
from submodel.config import Config
from submodel.config.fit import metric_problems, simplify
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
    """The task of a configuration for some data; ``loss``: one that is given in Python."""
    section = config.task
    if loss is not None and section.loss is not None:
        raise ConfigError(
            f"task.loss: {section.loss!r} is given, and a loss in Python; leave one out"
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
    """The task with the metrics that the model's outputs on its data allow.

    Of the task's own metrics others are left out, with a warning; raises `ConfigError` for those
    that the configuration asks for.
    """
    asked = config.task.metrics or ()
    count = _TRIED if all(map(METRICS.is_ours, asked)) else BATCH
    problems = metric_problems(module, data.test, task.metrics, count)
    if problems and config.task.metrics is not None:
        raise ConfigError([f"task.metrics: {name!r}: {why}" for name, why in problems.items()])
    if problems:
        reasons = [f"{name} ({why})" for name, why in problems.items()]
        _log.warning("metrics that are left out: %s", "; ".join(reasons))
    return keep_metrics(task, task.metrics.keys() - problems.keys())


def keep_metrics(task: TaskKind, names: Collection[str]) -> TaskKind:
    """The task with only these metrics; the loss replaces a headline that is left out."""
    metrics = {name: metric for name, metric in task.metrics.items() if name in names}
    headline = task.headline if task.headline in metrics else LOSS
    return replace(task, metrics=metrics, headline=headline)


def apply_task(task: TaskKind, data: Dataset) -> Dataset:
    """The data with the targets that the task trains and scores on."""
    train, test = task.examples(data.train), task.examples(data.test)
    classes = data.classes
    if train.y is not data.train.y:
        is_labelled = are_labels(train.y) and are_labels(test.y)
        classes = count_classes(train.y, test.y) if is_labelled else None
    held_out = None if data.held_out is None else task.examples(data.held_out)
    return replace(data, train=train, test=test, classes=classes, held_out=held_out)


def settle(config: Config, data: Dataset, is_plain: bool, split: bool = True) -> Config:
    """The configuration with the settings that follow from the data filled in.

    Args:
        config: as it was given.
        data: the examples.
        is_plain: whether targets are class labels, and the loss their cross-entropy.
        split: whether the data is shared out, and not given as lists of examples.
    """
    if config.local.absent_labels == "auto":
        absent: AbsentLabels = "leave_out" if is_plain else "keep"
        local = config.local.model_copy(update={"absent_labels": absent})
        config = config.model_copy(update={"local": local})
    return settle_clients(config, data) if split else config


def default_lines(given: Config, settled: Config, partition: Partition) -> list[str]:
    """The defaults that `settle` made others than usual, as ``key = value``: the data is small."""
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
