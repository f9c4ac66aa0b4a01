"""Tasks: the content of a batch, the loss, and the metrics, of which one is the headline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from submodel.core.errors import ConfigError, refuse
from submodel.core.options import Decay, FreeOptions, Section
from submodel.data import Dataset, Examples
from submodel.model.inputs import first_column
from submodel.tasks.builtin_tasks import METRICS, TASKS
from submodel.tasks.loss import Loss, TokenCrossEntropy
from submodel.tasks.metrics import BatchMetric, MetricContext

LOSS = "loss"
"""Headline of a task without a better one."""


def same_examples(examples: Examples) -> Examples:
    """Return the examples unchanged.

    Args:
        examples: a part of the data.
    """
    return examples


@dataclass(frozen=True)
class TaskKind:
    """A learning task.

    Args:
        name: its name in a configuration.
        loss: the mean loss of a batch, from outputs and targets.
        metrics: the reported metrics, by name.
        headline: the metric by which a run is judged, or "loss".
        examples: converts a part of the data to the examples for training and scoring; an
            autoencoder, for example, uses the inputs as targets.
    """

    name: str
    loss: Loss
    metrics: Mapping[str, BatchMetric] = field(default_factory=dict)
    headline: str = LOSS
    examples: Callable[[Examples], Examples] = same_examples

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger headline is better."""
        return self.headline != LOSS and self.metrics[self.headline].higher_is_better


@dataclass(frozen=True)
class TaskContext:
    """The context in which a task is made, beside its own keys.

    Args:
        loss: the loss that the user named or gave; None means the task's default.
        metrics: the names of the metrics that the user asked for; None means the task's default.
        facts: facts about the data, for metrics that need them.
        task: the name of the task that fits the data.
    """

    loss: Loss | None = None
    metrics: Sequence[str] | None = None
    facts: MetricContext = field(default_factory=MetricContext)
    task: str = "classification"

    def kind(self, name: str, loss: Loss, metrics: Sequence[str], headline: str = LOSS) -> TaskKind:
        """Make a task with these defaults; raises `ConfigError` for an unavailable metric."""
        names = metrics if self.metrics is None else self.metrics
        chosen_headline = headline if headline in names else LOSS
        return TaskKind(name, self.loss or loss, make_metrics(names, self.facts), chosen_headline)

    def smoothing(self, options: Any) -> float:
        """Return the key ``label_smoothing``, which requires the task's own loss."""
        value = float(getattr(options, "label_smoothing", 0.0))
        if value and self.loss is not None:
            raise ConfigError("task.label_smoothing: requires the task's own loss; leave one out")
        return value


def make_metrics(names: Sequence[str], facts: MetricContext) -> dict[str, BatchMetric]:
    """Make metrics, by their names in the lines of a run.

    >>> list(make_metrics(["accuracy", "f1"], MetricContext(classes=3)))
    ['accuracy', 'f1']
    """
    problems: list[str] = []
    metrics: dict[str, BatchMetric] = {}
    for name in names:
        try:
            component = METRICS.find(name)
            options = component.options() if component.options is FreeOptions else Section()
            metrics[short_name(name)] = component.make(options, facts)
        except ConfigError as error:
            problems += error.problems
    refuse(problems)
    return metrics


def short_name(name: str) -> str:
    """Return the name of a metric in the lines of a run.

    >>> short_name("f1"), short_name("my_package.metrics:Recall")
    ('f1', 'Recall')
    """
    return name.rpartition(":")[2].rpartition(".")[2]


# -- the tasks of the package ----------------------------------------------------------------------


class Smoothing(Section):
    """The keys of tasks that have labels."""

    label_smoothing: Decay = Field(
        0.0, description="the share of every label that is spread over all classes"
    )


@dataclass(frozen=True)
class Classification:
    """Classification, with class labels as targets."""

    Options = Smoothing

    @classmethod
    def configured(cls, options: Smoothing, context: TaskContext) -> TaskKind:
        """Make the task with the cross-entropy; accuracy is the headline."""
        smoothing = context.smoothing(options)
        loss: Loss = functional.cross_entropy
        if smoothing:
            loss = nn.CrossEntropyLoss(label_smoothing=smoothing)
        return context.kind("classification", loss, ["accuracy"], headline="accuracy")


@dataclass(frozen=True)
class Language:
    """Prediction of the next token of sequences."""

    Options = Smoothing

    @classmethod
    def configured(cls, options: Smoothing, context: TaskContext) -> TaskKind:
        """Make the task with perplexity, and bits per byte if the bytes of a token are known."""
        metrics = ["perplexity"]
        if context.facts.bytes_per_token is not None:
            metrics.append("bits_per_byte")
        return context.kind("language", TokenCrossEntropy(context.smoothing(options)), metrics)


@dataclass(frozen=True)
class Regression:
    """Regression of numbers, including whole ones, which would otherwise be labels.

    >>> task = Regression.configured(Section(), TaskContext())
    >>> task.examples(Examples(torch.zeros(2, 3), torch.tensor([4, 7]))).y
    tensor([[4.],
            [7.]])
    """

    @classmethod
    def configured(cls, options: Section, context: TaskContext) -> TaskKind:  # noqa: ARG003
        """Make the task with the squared error; R^2 and the mean absolute error are reported."""
        task = context.kind("regression", functional.mse_loss, ["r2", "mae"])
        return replace(task, examples=_as_numbers)


def _as_numbers(part: Examples) -> Examples:
    """Convert whole numbers to a column of floating-point numbers, one per example."""
    if part.y.is_floating_point():
        return part
    numbers = part.y.to(torch.get_default_dtype())
    return Examples(part.x, numbers[:, None] if numbers.dim() == 1 else numbers)


class TaskOfData:
    """Classification of labels, language for sequences of tokens, regression of other numbers."""

    Options = Smoothing

    @classmethod
    def configured(cls, options: Smoothing, context: TaskContext) -> TaskKind:
        """Make the task that fits the data, with the same keys."""
        if context.task == "regression" and options.label_smoothing:
            raise ConfigError("task.label_smoothing: needs labels, but targets are numbers")
        return TASKS.find(context.task).make(options, context)


def task_for(data: Dataset) -> str:
    """Return the name of the task that fits the data, for losses, metrics and models.

    Labels give classification; a whole number for every place of the inputs, such as the next token
    of a text, gives language; other numbers give regression.

    >>> from submodel.data import digits
    >>> task_for(digits())
    'classification'
    """
    if data.classes is not None:
        return "classification"
    targets, inputs = data.train.y, first_column(data.train.x)
    is_by_place = targets.dim() == 2 and targets.shape == inputs.shape
    if data.text is not None or (is_whole(targets) and is_by_place):
        return "language"
    return "regression" if targets.is_floating_point() else "classification"


def is_whole(tensor: Tensor) -> bool:
    """Return whether a tensor holds whole numbers.

    >>> is_whole(torch.tensor([1])), is_whole(torch.tensor([1.0]))
    (True, False)
    """
    return not tensor.is_floating_point() and not tensor.is_complex()
