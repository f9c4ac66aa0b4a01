"""The built-in models by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import nn

from submodel.errors import ConfigError
from submodel.model.zoo.factorised import factorised, only_ranks
from submodel.model.zoo.nets import cnn, mlp
from submodel.model.zoo.preresnet import PreResNet

__all__ = ["DEFAULT_WIDTHS", "ModelName", "factorised", "make_model", "only_ranks"]
ModelName = Literal["mlp", "cnn", "preresnet18", "preresnet34", "own"]
_LEAST = 4  # pixels that two poolings leave one of
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
    for key, value in (("width", width), ("classes", classes)):
        if not isinstance(value, int) or value < 1:
            raise ConfigError([f"model.{key}: {value!r} is not a whole number of at least 1"])
    if name != "mlp" and (len(inputs) != 3 or min(inputs[1:]) < (_LEAST if name == "cnn" else 1)):
        least = f" of at least {_LEAST} x {_LEAST}" if name == "cnn" else ""
        raise ConfigError([f"model.name: {name!r} needs images{least}, not {tuple(inputs)}"])
    try:
        if name == "mlp":
            return mlp(inputs, classes, width)
        if name == "cnn":
            return cnn(inputs, classes, width)
        return PreResNet(inputs, classes, width, int(name.removeprefix("preresnet")), scaler)
    except RuntimeError as error:  # of the allocator
        reason = str(error).partition("\n")[0]
        raise ConfigError([f"model.width: {width} is more than fits here: {reason}"]) from None
