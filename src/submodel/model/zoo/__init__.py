"""The built-in models, low-rank factorisation of layers, and adapters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from submodel.core.errors import ConfigError
from submodel.model.builtin_models import MODELS
from submodel.model.zoo.low_rank import add_adapters, factorised, fold_adapters, only_ranks

__all__ = [
    "ModelContext",
    "add_adapters",
    "allocating",
    "factorised",
    "fold_adapters",
    "make_model",
    "only_ranks",
]


@dataclass(frozen=True)
class ModelContext:
    """Properties of the data that a model depends on.

    Args:
        inputs: the shape of one input.
        classes: the number of outputs: classes, tokens to predict, or numbers.
        vocabulary: the number of tokens, if inputs are sequences of tokens.
        task: the kind of task, "classification", "language" or "regression"; None: not known.
    """

    inputs: Sequence[int]
    classes: int
    vocabulary: int | None = None
    task: str | None = None

    def images(self, name: str, least: int = 1) -> Sequence[int]:
        """The shape of the inputs; raise `ConfigError` unless they are large enough images."""
        if len(self.inputs) != 3 or min(self.inputs[1:]) < least:
            size = f" of at least {least} x {least}" if least > 1 else ""
            raise ConfigError(
                f"model.name: {name!r} needs images{size}, not {tuple(self.inputs)}; 'mlp' "
                "takes numbers of any shape"
            )
        return self.inputs

    def sequences(self, name: str) -> tuple[int, int]:
        """Length and vocabulary; raise `ConfigError` unless the task is next-token prediction."""
        if len(self.inputs) != 1 or self.task not in (None, "language"):
            targets = "" if self.task is None else f" with targets for {self.task}"
            raise ConfigError(
                f"model.name: {name!r} needs sequences of tokens, whose targets are the next "
                f"tokens, not inputs of shape {tuple(self.inputs)}{targets}"
            )
        return self.inputs[0], self.vocabulary or self.classes


@contextmanager
def allocating(width: int) -> Iterator[None]:
    """Turn a failed allocation into a `ConfigError` for ``model.width``."""
    try:
        yield
    except RuntimeError as error:  # of the allocator
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"model.width: {width} does not fit into memory: {reason}") from None


def make_model(
    name: str, inputs: Sequence[int], classes: int, width: int | None = None, **keys: Any
) -> nn.Module:
    """A model by name, for inputs of a shape and a number of classes.

    >>> make_model("mlp", (1, 8, 8), 10, width=16)[1]
    Linear(in_features=64, out_features=16, bias=True)
    """
    if not isinstance(classes, int) or classes < 1:
        raise ConfigError(f"model.classes: {classes!r} is not a whole number of at least 1")
    model = MODELS.find(name)
    values = {**keys, **({} if width is None else {"width": width})}
    options = model.options.model_validate(values)
    return model.make(options, ModelContext(inputs, classes))
