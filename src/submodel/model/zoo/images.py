"""Nets for images: a multilayer perceptron, a small convolutional net, pre-activation ResNets.

The ResNets (He et al. 2016) are the variants for small images that HeteroFL, FedRolex and the paper
use. Batch norm is static. All widths follow from the first: w, 2 w, 4 w, 8 w.

With ``scaler`` a `Scaler` follows every convolution. It makes little difference here: the inputs of
a norm, along the branch and along the skip, have been divided exactly once since the norms before,
so batch statistics cancel the factor, except for their eps. Measured in float64 on untrained nets,
capacities 1/2 to 1/16: with eps = 0 no bit of logits or gradients changes; with eps = 1e-5 logits
change by 4e-5, and gradients by 1 to 2 %, as some ReLUs switch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from submodel.core.options import Count, Section
from submodel.model.norm import Scaler, StaticBatchNorm
from submodel.model.zoo import ModelContext, allocating


def mlp(inputs: Sequence[int], classes: int, width: int) -> nn.Sequential:
    """Two hidden layers of equal width."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(inputs), width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )


class Mlp:
    """The component of ``mlp``."""

    class Options(Section):
        """The keys of ``mlp``."""

        width: Count = Field(128, description="units of both hidden layers")

    @classmethod
    def configured(cls, options: Options, context: ModelContext) -> nn.Module:
        """Make the net for inputs of any shape."""
        with allocating(options.width):
            return mlp(context.inputs, context.classes, options.width)


def cnn(inputs: Sequence[int], classes: int, width: int, scaler: bool = False) -> nn.Sequential:
    """Two normalised convolutions with pooling and one hidden layer: widths w, 2 w, 4 w.

    Args:
        inputs: channels, rows and columns of an image.
        classes: the number of classes.
        width: channels of the first convolution.
        scaler: whether to divide the inputs of linear layers by the capacity while training, so
            that sums over a fraction of the units are as large as those over all. Convolutions
            need no scaler: the norms after them remove any scale.
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
    """The component of ``cnn``."""

    class Options(Section):
        """The keys of ``cnn``."""

        width: Count = Field(32, description="channels of the first convolution")
        scaler: bool = Field(
            False, description="divide by the capacity before each linear layer while training"
        )

    @classmethod
    def configured(cls, options: Options, context: ModelContext) -> nn.Module:
        """Make the net for images that keep at least one pixel after two poolings."""
        inputs = context.images("cnn", least=4)
        with allocating(options.width):
            return cnn(inputs, context.classes, options.width, options.scaler)


BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
"""The number of blocks in each of the four stages, by depth."""


class _WithScaler(nn.Module):
    """A module that divides the outputs of its convolutions if it has a scaler."""

    def __init__(self, scaler: bool) -> None:
        super().__init__()
        self.scaler = Scaler() if scaler else None

    def scale(self, x: Tensor) -> Tensor:
        """Divide the output of a convolution."""
        if self.scaler is None:
            return x
        out: Tensor = self.scaler(x)
        return out


class Block(_WithScaler):
    """x + conv(relu(norm(conv(relu(norm(x))))))."""

    def __init__(self, inputs: int, outputs: int, stride: int, scaler: bool = False) -> None:
        super().__init__(scaler)
        self.norm1 = StaticBatchNorm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = StaticBatchNorm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the residual block."""
        active = functional.relu(self.norm1(x))
        skip = x if self.shortcut is None else self.scale(self.shortcut(active))
        inner = functional.relu(self.norm2(self.scale(self.conv1(active))))
        return self.scale(self.conv2(inner)) + skip


class PreResNet(_WithScaler):
    """Stem, four stages, final norm, mean over the image, linear classifier."""

    def __init__(
        self, inputs: Sequence[int], classes: int, width: int, depth: int, scaler: bool = False
    ) -> None:
        super().__init__(scaler)
        self.stem = nn.Conv2d(inputs[0], width, 3, padding=1, bias=False)
        stages, channels = [], width
        for s, blocks in enumerate(BLOCKS[depth]):
            stage = []
            for b in range(blocks):
                stage.append(Block(channels, width << s, 2 if s and not b else 1, scaler))
                channels = width << s
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.norm = StaticBatchNorm(channels)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits."""
        x = functional.relu(self.norm(self.stages(self.scale(self.stem(x)))))
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


class PreResNet18:
    """The component of ``preresnet18``."""

    depth = 18

    class Options(Section):
        """The keys of the preresnets."""

        width: Count = Field(64, description="channels of the first stage")
        scaler: bool = Field(
            False, description="divide by the capacity after each convolution while training"
        )

    @classmethod
    def configured(cls, options: Options, context: ModelContext) -> nn.Module:
        """Make the net for images."""
        inputs = context.images(f"preresnet{cls.depth}")
        with allocating(options.width):
            return PreResNet(inputs, context.classes, options.width, cls.depth, options.scaler)


class PreResNet34(PreResNet18):
    """The component of ``preresnet34``."""

    depth = 34
