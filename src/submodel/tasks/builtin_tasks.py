"""Built-in tasks, losses, metrics, optimisers and schedules, as entries of their registries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from submodel.core.registry import Entry, Registry

if TYPE_CHECKING:
    from submodel.tasks.loss import Loss
    from submodel.tasks.metrics import BatchMetric
    from submodel.tasks.optimisers import Optimiser
    from submodel.tasks.schedule import Schedule
    from submodel.tasks.task import TaskKind

AbsentLabels = Literal["keep", "zero", "leave_out"]
"""Logits of labels that a client lacks: kept, set to zero, or removed from the softmax."""


TASKS: Registry[TaskKind] = Registry(
    noun="task",
    key="task.name",
    group="submodel.tasks",
    expected="a submodel.TaskKind",
    of_class="submodel.tasks.task:TaskKind",
    with_context=True,
    entries={
        "auto": Entry("submodel.tasks.task:TaskOfData", "the task that fits the data"),
        "classification": Entry("submodel.tasks.task:Classification", "class labels"),
        "language": Entry("submodel.tasks.task:Language", "the next token of sequences"),
        "regression": Entry("submodel.tasks.task:Regression", "numbers"),
    },
)

LOSSES: Registry[Loss] = Registry(
    noun="loss",
    key="task.loss",
    group="submodel.losses",
    expected="a loss: a function of (outputs, targets)",
    is_function=True,
    entries={
        "cross-entropy": Entry("torch.nn.functional:cross_entropy", "of class labels"),
        "squared-error": Entry("torch.nn.functional:mse_loss", "the mean over all outputs"),
        "absolute-error": Entry("torch.nn.functional:l1_loss", "the mean over all outputs"),
    },
)


METRICS: Registry[BatchMetric] = Registry(
    noun="metric",
    key="task.metrics",
    group="submodel.metrics",
    expected="a metric: a function of (outputs, targets), or an object with sums and value",
    members=("higher_is_better", "width", "sums", "value"),
    adapt="submodel.tasks.metrics:as_metric",
    is_function=True,
    entries={
        "accuracy": Entry("submodel.tasks.metrics:Accuracy", "the share of correct predictions"),
        "top5": Entry("submodel.tasks.metrics:TopFive", "the correct label is among the best five"),
        "f1": Entry("submodel.tasks.metrics:MacroF1", "the mean over the classes"),
        "calibration": Entry("submodel.tasks.metrics:CalibrationError", "expected error, 15 bins"),
        "perplexity": Entry("submodel.tasks.metrics:Perplexity", "exponential of the loss"),
        "bits_per_byte": Entry(
            "submodel.tasks.metrics:BitsPerByte", "of the text, whatever the tokens"
        ),
        "mae": Entry("submodel.tasks.metrics:MeanAbsoluteError", "mean absolute error"),
        "r2": Entry("submodel.tasks.metrics:ExplainedVariance", "explained share of the variance"),
    },
)

OPTIMISERS: Registry[Optimiser] = Registry(
    noun="optimiser",
    key="local.optimiser",
    group="submodel.optimisers",
    expected="an optimiser, with copies, begin, step and plain",
    members=("copies", "begin", "step", "plain"),
    entries={
        "sgd": Entry("submodel.tasks.optimisers:Sgd", "with momentum or Nesterov's, as torch's"),
        "adam": Entry("submodel.tasks.optimisers:LocalAdam", "as torch's"),
        "adamw": Entry("submodel.tasks.optimisers:LocalAdamW", "decoupled decay, as torch's"),
        "adafactor": Entry(
            "submodel.tasks.optimisers:Adafactor", "little memory, relative rates, as torch's"
        ),
    },
)

SCHEDULES: Registry[Schedule] = Registry(
    noun="schedule",
    key="local.schedule",
    group="submodel.schedules",
    expected="a schedule: an object with factor(round)",
    members=("factor",),
    entries={
        "constant": Entry("submodel.tasks.schedule:Constant"),
        "step": Entry("submodel.tasks.schedule:Steps"),
        "cosine": Entry("submodel.tasks.schedule:Cosine"),
    },
)
"""A schedule is made with the number of rounds as context."""
