"""Tasks, losses and metrics by name: ours, and where their code is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from submodel.plugins import Kind, Offer

if TYPE_CHECKING:
    from submodel.tasks.base import TaskKind
    from submodel.tasks.loss import Loss
    from submodel.tasks.metrics import BatchMetric

AbsentLabels = Literal["keep", "zero", "leave_out"]
"""Logits of labels that a client lacks stay, are set to zero, or are taken out of the softmax."""


TASKS: Kind[TaskKind] = Kind(
    noun="task",
    key="task.name",
    group="submodel.tasks",
    wants="a submodel.TaskKind",
    of_class="submodel.tasks.base:TaskKind",
    with_context=True,
    offers={
        "auto": Offer("submodel.tasks.base:TaskOfData", "what the data is for"),
        "classification": Offer("submodel.tasks.base:Classification", "class labels"),
        "language": Offer("submodel.tasks.base:Language", "the next token of sequences"),
        "regression": Offer("submodel.tasks.base:Regression", "numbers"),
    },
)

LOSSES: Kind[Loss] = Kind(
    noun="loss",
    key="task.loss",
    group="submodel.losses",
    wants="a loss: a function of (outputs, targets)",
    is_function=True,
    offers={
        "cross-entropy": Offer("torch.nn.functional:cross_entropy", "of class labels"),
        "squared-error": Offer("torch.nn.functional:mse_loss", "the mean over all outputs"),
        "absolute-error": Offer("torch.nn.functional:l1_loss", "the mean over all outputs"),
    },
)


METRICS: Kind[BatchMetric] = Kind(
    noun="metric",
    key="task.metrics",
    group="submodel.metrics",
    wants="a metric: a function of (outputs, targets), or an object with sums and value",
    members=("higher_is_better", "width", "sums", "value"),
    adapt="submodel.tasks.metrics:as_metric",
    is_function=True,
    offers={
        "accuracy": Offer("submodel.tasks.metrics:Accuracy", "the share of right answers"),
        "top5": Offer("submodel.tasks.metrics:TopFive", "right is among the best five"),
        "f1": Offer("submodel.tasks.metrics:MacroF1", "the mean over the classes"),
        "calibration": Offer("submodel.tasks.metrics:CalibrationError", "expected error, 15 bins"),
        "perplexity": Offer("submodel.tasks.metrics:Perplexity", "e to the loss"),
        "bits_per_byte": Offer(
            "submodel.tasks.metrics:BitsPerByte", "of the text, whatever the tokens"
        ),
        "mae": Offer("submodel.tasks.metrics:MeanAbsoluteError", "mean absolute error"),
        "r2": Offer("submodel.tasks.metrics:ExplainedVariance", "explained share of the variance"),
    },
)
