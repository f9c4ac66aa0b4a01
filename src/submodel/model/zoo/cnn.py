"""A small convolutional net."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field
from torch import nn

from submodel.model.norm import Scaler, StaticBatchNorm
from submodel.model.zoo import ModelContext, allocating
from submodel.options import Count, Section


def cnn(inputs: Sequence[int], classes: int, width: int, scaler: bool = False) -> nn.Sequential:
    """Two normalised convolutions with pooling and one hidden layer: widths w, 2 w, 4 w.

    Args:
        inputs: channels, rows and columns of an image.
        classes: how many.
        width: channels of the first convolution.
        scaler: whether what enters a linear layer is divided by the capacity while training, so
            that sums over a share of the units are as large as those over all. Convolutions need
            none: the norms after them divide by any scale.
    """
    channels, height, columns = inputs
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        StaticBatchNorm(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        StaticBatchNorm(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        *([Scaler()] if scaler else []),
        nn.Linear(2 * width * (height // 4) * (columns // 4), 4 * width),
        nn.ReLU(),
        *([Scaler()] if scaler else []),
        nn.Linear(4 * width, classes),
    )


class Cnn:
    """The net as a component."""

    class Options(Section):
        """The keys of ``cnn``."""

        width: Count = Field(32, description="channels of the first convolution")
        scaler: bool = Field(
            False, description="divide by the capacity before each linear layer while training"
        )

    @classmethod
    def configured(cls, options: Options, context: ModelContext) -> nn.Module:
        """For images that two poolings leave a pixel of."""
        inputs = context.images("cnn", least=4)
        with allocating(options.width):
            return cnn(inputs, context.classes, options.width, options.scaler)
