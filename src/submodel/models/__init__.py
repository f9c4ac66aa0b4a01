"""The built-in models by name: a module and the axes declared for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from submodel.axes import Axes, Dimension, declare
from submodel.build import tensors_of
from submodel.models.nets import cnn, cnn_axes, mlp, mlp_axes
from submodel.models.preresnet import PreResNet, preresnet_axes
from submodel.randomness import key

ModelName = Literal["mlp", "cnn", "preresnet18", "preresnet34", "own"]

DEFAULT_WIDTHS: dict[ModelName, int] = {"mlp": 128, "cnn": 32, "preresnet18": 64, "preresnet34": 64}


def make_model(
    name: ModelName, inputs: Sequence[int], classes: int, width: int | None = None, seed: int = 0
) -> tuple[nn.Module, Axes]:
    """A built-in model, initialised from the seed alone, and its axes.

    >>> _, axes = make_model("cnn", (1, 8, 8), 10, width=4)
    >>> axes.sizes
    {'channels1': 4, 'channels2': 8, 'hidden': 16, 'classes': 10}
    """
    width = DEFAULT_WIDTHS[name] if width is None else width
    module: nn.Module
    members: dict[str, tuple[Dimension, ...]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "initialise") % 2**63)
        if name == "mlp":
            module, members = mlp(inputs, classes, width), mlp_axes()
        elif name == "cnn":
            module, members = cnn(inputs, classes, width), cnn_axes(inputs)
        else:
            depth = int(name.removeprefix("preresnet"))
            module, members = PreResNet(inputs, classes, width, depth), preresnet_axes(depth)
    return module, declare(tensors_of(module), members)
