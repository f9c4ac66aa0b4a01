"""The built-in models by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from submodel.errors import ConfigError
from submodel.models.factorised import factorised, only_ranks
from submodel.models.nets import cnn, mlp
from submodel.models.preresnet import PreResNet

__all__ = ["DEFAULT_WIDTHS", "ModelName", "factorised", "make_model", "only_ranks"]
ModelName = Literal["mlp", "cnn", "preresnet18", "preresnet34", "own"]
DEFAULT_WIDTHS = {"mlp": 128, "cnn": 32, "preresnet18": 64, "preresnet34": 64}


def make_model(
    name: str,
    inputs: Sequence[int],
    classes: int,
    width: int | None = None,
    scaler: bool = False,
) -> nn.Module:
    """A built-in model for inputs of a shape and a number of classes.

    >>> make_model("mlp", (1, 8, 8), 10, width=16)[1]
    Linear(in_features=64, out_features=16, bias=True)
    """
    if scaler and not name.startswith("preresnet"):
        raise ConfigError([f"model.scaler: only the preresnets have scalers, not {name!r}"])
    width = DEFAULT_WIDTHS[name] if width is None else width
    if name == "mlp":
        return mlp(inputs, classes, width)
    if name == "cnn":
        return cnn(inputs, classes, width)
    return PreResNet(inputs, classes, width, int(name.removeprefix("preresnet")), scaler)
