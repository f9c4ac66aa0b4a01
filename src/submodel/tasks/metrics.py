"""Metrics: sums over batches, and a value computed from the sums.

Several processes may compute the batches of an evaluation, so a metric must follow from sums over
batches: accuracy, for example, from the number of correct predictions and of labels.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from submodel.core.errors import ConfigError
from submodel.core.options import Section
from submodel.tasks.loss import by_label

__all__ = ["BatchMetric", "MetricContext", "as_metric"]

MetricFunction = Callable[[Tensor, Tensor], Any]
_BEST = 5
_BINS = 15
_LARGEST = 700.0  # the exponential of more overflows


class BatchMetric(Protocol):
    """A number that measures the quality of outputs."""

    @property
    def higher_is_better(self) -> bool:
        """Whether larger values are better."""
        ...

    @property
    def width(self) -> int:
        """Number of sums."""
        ...

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the ``width`` sums of one batch."""
        ...

    def value(self, sums: Tensor, loss: float) -> float:
        """Compute the metric from the sums over all batches and the mean loss."""
        ...


@dataclass(frozen=True)
class MetricContext:
    """Facts about the data that a metric may need."""

    classes: int | None = None  # number of classes, or of tokens
    bytes_per_token: float | None = None  # of text
    unit: float = 1.0  # the size of 1 in the unit of the given targets


def as_metric(thing: Any) -> Any:
    """Return a plain function as a metric; return anything else unchanged."""
    return FunctionMetric(thing) if inspect.isfunction(thing) else thing


class _Mean:
    """A metric that is one sum over another; 0 if the latter is 0."""

    width: ClassVar[int] = 2

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """Divide the first sum by the second."""
        part, whole = sums.tolist()
        return float(part / whole) if whole else 0.0


def _sums(*values: float | Tensor) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


@dataclass(frozen=True)
class FunctionMetric(_Mean):
    """The mean over examples of a function of (outputs, targets).

    The attribute ``higher_is_better`` of the function is respected; the default is true.
    """

    function: MetricFunction

    @property
    def higher_is_better(self) -> bool:
        """Whether larger values are better, by the attribute of the function."""
        return bool(getattr(self.function, "higher_is_better", True))

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the value of the function, weighted by the number of examples, and that number."""
        count = float(len(targets))
        return _sums(float(self.function(outputs, targets)) * count, count)


# -- labels ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy(_Mean):
    """The fraction of labels whose logit is the largest.

    >>> Accuracy().sums(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0])).tolist()
    [1.0, 2.0]
    """

    higher_is_better: ClassVar[bool] = True

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the number of correct predictions and of labels."""
        logits, labels = by_label(outputs, targets)
        return _sums((logits.argmax(1) == labels).sum(), len(labels))


@dataclass(frozen=True)
class TopFive(_Mean):
    """The fraction of labels whose logit is among the largest five.

    >>> TopFive().sums(torch.arange(6.0)[None], torch.tensor([0])).tolist()
    [0.0, 1.0]
    """

    higher_is_better: ClassVar[bool] = True

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the number of correct predictions and of labels."""
        logits, labels = by_label(outputs, targets)
        best = logits.topk(min(_BEST, logits.shape[1]), dim=1).indices
        return _sums((best == labels[:, None]).any(1).sum(), len(labels))


@dataclass(frozen=True)
class MacroF1:
    """The mean over classes of 2 tp / (2 tp + fp + fn), as scikit-learn's ``average="macro"``.

    Classes that are neither present nor predicted do not count.

    >>> metric = MacroF1(classes=2)
    >>> sums = metric.sums(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    >>> round(metric.value(sums, 0.0), 3)
    0.333
    """

    classes: int
    higher_is_better: ClassVar[bool] = True

    @classmethod
    def configured(cls, options: Section, context: MetricContext) -> Self:  # noqa: ARG003
        """Make the metric for the classes of the data."""
        if context.classes is None:
            raise ConfigError("task.metrics: 'f1' needs class labels")
        return cls(context.classes)

    @property
    def width(self) -> int:
        """Three counts per class: correct predictions, predictions and examples."""
        return 3 * self.classes

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the counts by class."""
        logits, labels = by_label(outputs, targets)
        answers = logits.argmax(1)
        counts = [
            torch.bincount(values, minlength=self.classes)[: self.classes]
            for values in (labels[answers == labels], answers, labels)
        ]
        return torch.cat(counts).double().cpu()

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """Return the mean over the classes that are present or predicted."""
        right, answers, examples = sums.view(3, -1)
        either = answers + examples
        return float((2 * right[either > 0] / either[either > 0]).mean())


@dataclass(frozen=True)
class CalibrationError:
    """sum_b (n_b / n) |accuracy_b - confidence_b| over 15 equal bins of confidence.

    The definition is that of Guo et al. 2017; confidence is the largest softmax probability.

    >>> metric = CalibrationError()
    >>> sums = metric.sums(torch.tensor([[30.0, 0.0], [30.0, 0.0]]), torch.tensor([0, 1]))
    >>> round(metric.value(sums, 0.0), 3)
    0.5
    """

    higher_is_better: ClassVar[bool] = False
    width: ClassVar[int] = 3 * _BINS

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return by bin the number of predictions, of correct ones, and the sum of confidences."""
        logits, labels = by_label(outputs, targets)
        confidence, answers = logits.double().softmax(1).max(1)
        place = (confidence * _BINS).ceil().long().clamp(1, _BINS) - 1  # bins (a, b]
        right = (answers == labels).double()
        rows = [torch.ones_like(confidence), right, confidence]
        return torch.cat([torch.bincount(place, row, _BINS) for row in rows]).cpu()

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """Return the mean distance, weighted by the number of predictions in a bin."""
        count, right, confidence = sums.view(3, -1)
        return float((right - confidence).abs().sum() / count.sum())


# -- tokens ----------------------------------------------------------------------------------------


class _OfLoss:
    """A metric that follows from the loss alone: a smaller loss is better."""

    higher_is_better: ClassVar[bool] = False
    width: ClassVar[int] = 0

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        """Return no sums: the loss suffices."""
        return _sums()


@dataclass(frozen=True)
class Perplexity(_OfLoss):
    """The exponential of the mean loss of a token.

    >>> round(Perplexity().value(torch.zeros(0), math.log(8)), 6)
    8.0
    """

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """Return the exponential of the loss."""
        return math.exp(min(loss, _LARGEST))


@dataclass(frozen=True)
class BitsPerByte(_OfLoss):
    """The loss of a token in bits, divided by the mean number of bytes of a token in the test part.

    It compares models with different tokenisers.

    >>> BitsPerByte(bytes_per_token=2.0).value(torch.zeros(0), math.log(16))
    2.0
    """

    bytes_per_token: float

    @classmethod
    def configured(cls, options: Section, context: MetricContext) -> Self:  # noqa: ARG003
        """Make the metric for the tokens of the data."""
        if context.bytes_per_token is None:
            raise ConfigError(
                "task.metrics: 'bits_per_byte' needs text, whose tokens have known bytes"
            )
        return cls(context.bytes_per_token)

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """Return the loss in bits per byte."""
        return loss / math.log(2) / self.bytes_per_token


# -- numbers ---------------------------------------------------------------------------------------


def _check_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise unless there is one output per target: torch would broadcast other shapes."""
    if outputs.shape != targets.shape:
        raise ConfigError(
            f"task: outputs of shape {tuple(outputs.shape)} are not one for each target, of "
            f"shape {tuple(targets.shape)}"
        )


@dataclass(frozen=True)
class MeanAbsoluteError(_Mean):
    """The mean absolute difference of outputs and targets.

    Args:
        unit: the size of 1 in the unit of the user's targets.

    >>> MeanAbsoluteError().sums(torch.zeros(2, 1), torch.tensor([[1.0], [-3.0]])).tolist()
    [4.0, 2.0]
    """

    unit: float = 1.0
    higher_is_better: ClassVar[bool] = False

    @classmethod
    def configured(cls, options: Section, context: MetricContext) -> Self:  # noqa: ARG003
        """Make the metric in the unit of the data."""
        return cls(context.unit)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of differences, and their number."""
        _check_same_shape(outputs, targets)
        distance = (outputs.double() - targets.double()).abs()
        return _sums(distance.sum(), distance.numel())

    def value(self, sums: Tensor, loss: float) -> float:
        """Return the mean in the unit of the targets."""
        return super().value(sums, loss) * self.unit


@dataclass(frozen=True)
class ExplainedVariance:
    """1 - sum (y - f)^2 / sum (y - mean)^2, over all targets together: R squared.

    >>> metric, targets = ExplainedVariance(), torch.tensor([[1.0], [3.0]])
    >>> metric.value(metric.sums(torch.tensor([[1.0], [2.0]]), targets), 0.0)
    0.5
    """

    higher_is_better: ClassVar[bool] = True
    width: ClassVar[int] = 4

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return sums of squared errors, targets and squared targets, and the number of targets."""
        _check_same_shape(outputs, targets)
        numbers = targets.double()
        error = (outputs.double() - numbers).square().sum()
        return _sums(error, numbers.sum(), numbers.square().sum(), numbers.numel())

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """Return the explained fraction of the variance; 0 if targets do not vary."""
        error, total, squares, count = sums.tolist()
        variance = squares - total * total / count
        return 1 - error / variance if variance > 0 else 0.0
