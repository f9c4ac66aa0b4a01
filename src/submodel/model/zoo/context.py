"""What a model is made for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from submodel.errors import ConfigError


@dataclass(frozen=True)
class ModelContext:
    """The shape of one input, and the number of outputs."""

    inputs: Sequence[int]
    classes: int

    def images(self, name: str, least: int = 1) -> Sequence[int]:
        """The inputs, if they are images of at least so many pixels each way."""
        if len(self.inputs) != 3 or min(self.inputs[1:]) < least:
            size = f" of at least {least} x {least}" if least > 1 else ""
            raise ConfigError(
                [f"model.name: {name!r} needs images{size}, not {tuple(self.inputs)}"]
            )
        return self.inputs


@contextmanager
def allocating(width: int) -> Iterator[None]:
    """Say it by its key where a width is more than memory holds."""
    try:
        yield
    except RuntimeError as error:  # of the allocator
        reason = str(error).partition("\n")[0]
        raise ConfigError([f"model.width: {width} is more than fits here: {reason}"]) from None
