"""What a task is: what a batch holds, the loss, and the metrics, of which one is the headline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from submodel.data import Examples
from submodel.errors import ConfigError
from submodel.options import FreeOptions, Section
from submodel.tasks.loss import Loss
from submodel.tasks.metrics import BatchMetric, MetricContext
from submodel.tasks.registry import METRICS

LOSS = "loss"
"""The headline of a task that has no better one."""


def same_examples(examples: Examples) -> Examples:
    """As they are.

    Args:
        examples: a part of the data.
    """
    return examples


@dataclass(frozen=True)
class TaskKind:
    """What is learned.

    Args:
        name: as a configuration has it.
        loss: the mean loss of a batch, from outputs and targets.
        metrics: what is told beside the loss, by name.
        headline: the metric by which a run is judged, or "loss".
        examples: from a part of the data to what is trained and scored on; an autoencoder, say,
            takes the inputs for targets.
    """

    name: str
    loss: Loss
    metrics: Mapping[str, BatchMetric] = field(default_factory=dict)
    headline: str = LOSS
    examples: Callable[[Examples], Examples] = same_examples

    @property
    def higher_is_better(self) -> bool:
        """Which direction of the headline is better."""
        return self.headline != LOSS and self.metrics[self.headline].higher_is_better


@dataclass(frozen=True)
class TaskContext:
    """What a task is told beside its own keys.

    Args:
        loss: the loss that the user named or gave; None: the task's own.
        metrics: the names of the metrics that the user asked for; None: the task's own.
        facts: of the data, for metrics that need them.
        task: the name of the task that the data is for.
    """

    loss: Loss | None = None
    metrics: Sequence[str] | None = None
    facts: MetricContext = field(default_factory=MetricContext)
    task: str = "classification"

    def kind(self, name: str, loss: Loss, metrics: Sequence[str], headline: str = LOSS) -> TaskKind:
        """A task with these defaults; raises `ConfigError` for a metric that cannot be had."""
        names = metrics if self.metrics is None else self.metrics
        chosen_headline = headline if headline in names else LOSS
        return TaskKind(name, self.loss or loss, make_metrics(names, self.facts), chosen_headline)

    def smoothing(self, options: Any) -> float:
        """The key ``label_smoothing``, which goes with the task's own loss."""
        value = float(getattr(options, "label_smoothing", 0.0))
        if value and self.loss is not None:
            raise ConfigError(
                ["task.label_smoothing: goes with the task's own loss; leave one out"]
            )
        return value


def make_metrics(names: Sequence[str], facts: MetricContext) -> dict[str, BatchMetric]:
    """Metrics by the names that lines of a run show them under.

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
    if problems:
        raise ConfigError(problems)
    return metrics


def short_name(name: str) -> str:
    """What a metric is called in the lines of a run.

    >>> short_name("f1"), short_name("my_package.metrics:Recall")
    ('f1', 'Recall')
    """
    return name.rpartition(":")[2].rpartition(".")[2]
