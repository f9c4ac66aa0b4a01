"""The built-in nets: a multi-layer perceptron and a small convolutional net."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from submodel.model.norm import StaticBatchNorm


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


def cnn(inputs: Sequence[int], classes: int, width: int) -> nn.Sequential:
    """Two normalised convolutions with pooling and one hidden layer: widths w, 2 w, 4 w."""
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
        nn.Linear(2 * width * (height // 4) * (columns // 4), 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, classes),
    )
