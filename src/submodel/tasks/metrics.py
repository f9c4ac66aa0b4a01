"""Metrics: sums over batches, and the number that the sums come to.

Batches of an evaluation may be computed by several processes, so a metric is what can be had from
sums over the batches: the share of right answers from how many were right and how many there were.
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
_LARGEST = 700.0  # e to more than that is no number


class BatchMetric(Protocol):
    """A number that says how good outputs are."""

    @property
    def higher_is_better(self) -> bool:
        """Which direction is better."""
        ...

    @property
    def width(self) -> int:
        """How many sums it keeps."""
        ...

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What a batch adds: ``width`` numbers."""
        ...

    def value(self, sums: Tensor, loss: float) -> float:
        """What the sums over all batches come to; ``loss`` is the mean loss over them."""
        ...


@dataclass(frozen=True)
class MetricContext:
    """What a metric may need to know of the data."""

    classes: int | None = None  # that targets are labels of: classes, or tokens
    bytes_per_token: float | None = None  # of text
    unit: float = 1.0  # what one is, in the unit that the targets were given in


def as_metric(thing: Any) -> Any:
    """A plain function as a metric; everything else as it is."""
    return FunctionMetric(thing) if inspect.isfunction(thing) else thing


class _Mean:
    """A metric that is one sum over another; nought where nothing counts."""

    width: ClassVar[int] = 2

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The first sum over the second."""
        part, whole = sums.tolist()
        return float(part / whole) if whole else 0.0


def _sums(*values: float | Tensor) -> Tensor:
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


@dataclass(frozen=True)
class FunctionMetric(_Mean):
    """A function of (outputs, targets), the mean of which over examples is told.

    ``higher_is_better`` is the function's attribute of that name, true where it has none.
    """

    function: MetricFunction

    @property
    def higher_is_better(self) -> bool:
        """As the function says."""
        return bool(getattr(self.function, "higher_is_better", True))

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Its value, as often as there are examples."""
        count = float(len(targets))
        return _sums(float(self.function(outputs, targets)) * count, count)


# -- labels ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy(_Mean):
    """How often the largest logit is the right one, over all labels that count.

    >>> Accuracy().sums(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0])).tolist()
    [1.0, 2.0]
    """

    higher_is_better: ClassVar[bool] = True

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many are right, and how many there are."""
        logits, labels = by_label(outputs, targets)
        return _sums((logits.argmax(1) == labels).sum(), len(labels))


@dataclass(frozen=True)
class TopFive(_Mean):
    """How often the right logit is among the largest five.

    >>> TopFive().sums(torch.arange(6.0)[None], torch.tensor([0])).tolist()
    [0.0, 1.0]
    """

    higher_is_better: ClassVar[bool] = True

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How many are right, and how many there are."""
        logits, labels = by_label(outputs, targets)
        best = logits.topk(min(_BEST, logits.shape[1]), dim=1).indices
        return _sums((best == labels[:, None]).any(1).sum(), len(labels))


@dataclass(frozen=True)
class MacroF1:
    """The mean over the classes of 2 tp / (2 tp + fp + fn), as scikit-learn's ``average="macro"``.

    Classes that are neither there nor answered do not count.

    >>> metric = MacroF1(classes=2)
    >>> sums = metric.sums(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    >>> round(metric.value(sums, 0.0), 3)
    0.333
    """

    classes: int
    higher_is_better: ClassVar[bool] = True

    @classmethod
    def configured(cls, options: Section, context: MetricContext) -> Self:  # noqa: ARG003
        """For the classes of the data."""
        if context.classes is None:
            raise ConfigError("task.metrics: 'f1' needs class labels")
        return cls(context.classes)

    @property
    def width(self) -> int:
        """Right answers, answers and examples of every class."""
        return 3 * self.classes

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Counts by class."""
        logits, labels = by_label(outputs, targets)
        answers = logits.argmax(1)
        counts = [
            torch.bincount(values, minlength=self.classes)[: self.classes]
            for values in (labels[answers == labels], answers, labels)
        ]
        return torch.cat(counts).double().cpu()

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The mean over the classes that came up."""
        right, answers, examples = sums.view(3, -1)
        either = answers + examples
        return float((2 * right[either > 0] / either[either > 0]).mean())


@dataclass(frozen=True)
class CalibrationError:
    """sum_b (n_b / n) |accuracy_b - confidence_b| over 15 equal bins of confidence.

    As Guo et al. 2017 define it; confidence is the largest softmax probability.

    >>> metric = CalibrationError()
    >>> sums = metric.sums(torch.tensor([[30.0, 0.0], [30.0, 0.0]]), torch.tensor([0, 1]))
    >>> round(metric.value(sums, 0.0), 3)
    0.5
    """

    higher_is_better: ClassVar[bool] = False
    width: ClassVar[int] = 3 * _BINS

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Answers, right ones and the sum of confidences by bin."""
        logits, labels = by_label(outputs, targets)
        confidence, answers = logits.double().softmax(1).max(1)
        place = (confidence * _BINS).ceil().long().clamp(1, _BINS) - 1  # bins (a, b]
        right = (answers == labels).double()
        rows = [torch.ones_like(confidence), right, confidence]
        return torch.cat([torch.bincount(place, row, _BINS) for row in rows]).cpu()

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The mean distance, bins weighing what they hold."""
        count, right, confidence = sums.view(3, -1)
        return float((right - confidence).abs().sum() / count.sum())


# -- tokens ----------------------------------------------------------------------------------------


class _OfLoss:
    """A metric that follows from the loss alone: a smaller loss is better."""

    higher_is_better: ClassVar[bool] = False
    width: ClassVar[int] = 0

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        """Nothing but the loss."""
        return _sums()


@dataclass(frozen=True)
class Perplexity(_OfLoss):
    """e to the mean loss of a token.

    >>> round(Perplexity().value(torch.zeros(0), math.log(8)), 6)
    8.0
    """

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The exponential."""
        return math.exp(min(loss, _LARGEST))


@dataclass(frozen=True)
class BitsPerByte(_OfLoss):
    """The loss of a token in bits, over the bytes that a token of the test part has on average.

    Models with different tokens can be compared by it.

    >>> BitsPerByte(bytes_per_token=2.0).value(torch.zeros(0), math.log(16))
    2.0
    """

    bytes_per_token: float

    @classmethod
    def configured(cls, options: Section, context: MetricContext) -> Self:  # noqa: ARG003
        """For the tokens of the data."""
        if context.bytes_per_token is None:
            raise ConfigError(
                "task.metrics: 'bits_per_byte' needs text, whose tokens have known bytes"
            )
        return cls(context.bytes_per_token)

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """Bits."""
        return loss / math.log(2) / self.bytes_per_token


# -- numbers ---------------------------------------------------------------------------------------


def _check_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise unless there is one output for every target: torch would broadcast others."""
    if outputs.shape != targets.shape:
        raise ConfigError(
            f"task: outputs of shape {tuple(outputs.shape)} are not one for each target, of "
            f"shape {tuple(targets.shape)}"
        )


@dataclass(frozen=True)
class MeanAbsoluteError(_Mean):
    """How far outputs are from their targets, on average over all of them.

    Args:
        unit: what one is, in the unit of the user's targets.

    >>> MeanAbsoluteError().sums(torch.zeros(2, 1), torch.tensor([[1.0], [-3.0]])).tolist()
    [4.0, 2.0]
    """

    unit: float = 1.0
    higher_is_better: ClassVar[bool] = False

    @classmethod
    def configured(cls, options: Section, context: MetricContext) -> Self:  # noqa: ARG003
        """In the unit of the data."""
        return cls(context.unit)

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The sum of distances, and how many there are."""
        _check_same_shape(outputs, targets)
        distance = (outputs.double() - targets.double()).abs()
        return _sums(distance.sum(), distance.numel())

    def value(self, sums: Tensor, loss: float) -> float:
        """The mean."""
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
        """Squared errors, targets, their squares, and how many there are."""
        _check_same_shape(outputs, targets)
        numbers = targets.double()
        error = (outputs.double() - numbers).square().sum()
        return _sums(error, numbers.sum(), numbers.square().sum(), numbers.numel())

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The share; nought where targets do not vary."""
        error, total, squares, count = sums.tolist()
        variance = squares - total * total / count
        return 1 - error / variance if variance > 0 else 0.0
