"""What is learned, settled: the task that the data is for, its loss, its metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from submodel.config import Config, parse
from submodel.data import Dataset
from submodel.data.augmentations import Augmentations, AugmentContext
from submodel.data.checks import are_labels, count_classes
from submodel.data.registry import AUGMENTATIONS
from submodel.errors import ConfigError
from submodel.options import FreeOptions, Section
from submodel.prepare.fit import simplify
from submodel.tasks.absent import AbsentLabels
from submodel.tasks.base import TaskContext, TaskKind
from submodel.tasks.data_task import task_for
from submodel.tasks.loss import Loss
from submodel.tasks.metrics import MetricContext
from submodel.tasks.registry import LOSSES, TASKS


def make_task(config: Config, data: Dataset, loss: Loss | None = None) -> TaskKind:
    """The task of a configuration for some data; ``loss``: one that is given in Python."""
    section = config.task
    if loss is not None and section.loss is not None:
        raise ConfigError(
            [f"task.loss: {section.loss!r} is given, and a loss in Python; leave one out"]
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


def apply_task(task: TaskKind, data: Dataset) -> Dataset:
    """The data as the task trains and scores on it; its targets may be labels no more."""
    train, test = task.examples(data.train), task.examples(data.test)
    classes = data.classes
    if train.y is not data.train.y:
        is_labelled = are_labels(train.y) and are_labels(test.y)
        classes = count_classes(train.y, test.y) if is_labelled else None
    held_out = None if data.held_out is None else task.examples(data.held_out)
    return replace(data, train=train, test=test, classes=classes, held_out=held_out)


def settle(config: Config, owners: int | None, is_plain: bool) -> Config:
    """The configuration with what follows from the data in the place of what is left to it.

    Args:
        config: as it was given.
        owners: how many clients the data names, where it does.
        is_plain: whether targets are class labels, and the loss their cross-entropy.
    """
    sections: dict[str, Section] = {}
    if config.local.absent_labels == "auto":
        absent: AbsentLabels = "leave_out" if is_plain else "keep"
        sections["local"] = config.local.model_copy(update={"absent_labels": absent})
    return settle_clients(config.model_copy(update=sections), owners)


def settle_clients(config: Config, owners: int | None) -> Config:
    """The configuration with as many clients as the data names, where it is asked for them.

    Args:
        config: as it was given; a number of clients that it has stays.
        owners: how many clients the data names, where it does.
    """
    natural = config.data.partition == "natural" or (
        config.data.partition == "auto" and config.data.asks_for_natural
    )
    if owners is None or not natural or config.clients.count is not None:
        return config
    clients = config.clients.model_dump(exclude_unset=True)
    if config.clients.per_round == type(config.clients).model_fields["per_round"].default:
        clients["per_round"] = min(config.clients.sample_size, owners)
    section = parse({"clients": {**clients, "count": owners}}).clients
    return config.model_copy(update={"clients": section})


def make_augmentations(config: Config, data: Dataset) -> Augmentations:
    """What is done to training batches."""
    names: Sequence[str] = config.data.augment
    if not names:
        return Augmentations()
    about = data.about
    black: tuple[float, ...] = ()
    if about is not None and about.mean:
        black = tuple(-m / d for m, d in zip(about.mean, about.deviation, strict=True))
    context = AugmentContext(data.inputs, black)
    steps = []
    for name in names:
        component = AUGMENTATIONS.find(name)
        options = component.options() if component.options is FreeOptions else Section()
        steps.append(component.make(options, context))
    return Augmentations(tuple(steps), config.seed)
