"""What a metric is: sums over batches, and what they come to.

Batches of an evaluation may be computed by several processes, so a metric is what can be had from
sums over the batches: the share of right answers from how many were right and how many there were.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from submodel.errors import ConfigError

MetricFunction = Callable[[Tensor, Tensor], Any]


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


@dataclass(frozen=True)
class FunctionMetric:
    """A function of (outputs, targets), the mean of which over examples is told.

    ``higher_is_better`` is the function's attribute of that name, true where it has none.
    """

    function: MetricFunction

    @property
    def higher_is_better(self) -> bool:
        """As the function says."""
        return bool(getattr(self.function, "higher_is_better", True))

    @property
    def width(self) -> int:
        """The sum of its values, and of the examples."""
        return 2

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Its value, as often as there are examples."""
        count = float(len(targets))
        return torch.tensor(
            [float(self.function(outputs, targets)) * count, count], dtype=torch.float64
        )

    def value(self, sums: Tensor, loss: float) -> float:  # noqa: ARG002
        """The mean over examples."""
        return float(sums[0] / sums[1])


def as_metric(thing: Any) -> Any:
    """A plain function as a metric; everything else as it is."""
    return FunctionMetric(thing) if inspect.isfunction(thing) else thing


def check_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise unless there is one output for every target: torch would broadcast others."""
    if outputs.shape != targets.shape:
        raise ConfigError(
            [
                f"task: outputs of shape {tuple(outputs.shape)} are not one for each target, of "
                f"shape {tuple(targets.shape)}"
            ]
        )


def ratio(sums: Tensor) -> float:
    """The first sum over the second; nought where nothing counts.

    >>> ratio(torch.tensor([1.0, 4.0]))
    0.25
    """
    part, whole = sums.tolist()
    return part / whole if whole else 0.0
