"""A multi-layer perceptron."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import nn

from submodel.model.zoo import ModelContext, allocating
from submodel.options import Count, Section


def mlp(inputs: Sequence[int], classes: int, width: int) -> nn.Sequential:
    """Two hidden layers of equal width."""
    features = 1
    for size in inputs:
        features *= size
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(features, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


class Mlp:
    """The net as a component."""

    class Options(Section):
        """The keys of ``mlp``."""

        width: Count = Field(128, description="of both hidden layers")

    @classmethod
    def configured(cls, options: Options, context: ModelContext) -> nn.Module:
        """For inputs of any shape."""
        with allocating(options.width):
            return mlp(context.inputs, context.classes, options.width)
