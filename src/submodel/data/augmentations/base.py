"""What an augmentation is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from submodel.errors import ConfigError
from submodel.randomness import generator


class Augmentation(Protocol):
    """Changes the examples of one client's batch at random.

    All that is random comes from the generator, which follows from (seed, round, client, step): so
    a resumed run, and every engine, sees the same examples.
    """

    def __call__(self, examples: Tensor, generator: np.random.Generator) -> Tensor:
        """Examples of the same shape; what is given is not changed."""
        ...


@dataclass(frozen=True)
class AugmentContext:
    """What an augmentation may need to know of the data."""

    inputs: tuple[int, ...]  # the shape of one example
    black: tuple[float, ...]  # the value that a pixel without light has in every channel

    def needed_images(self, name: str) -> tuple[float, ...]:
        """The black pixel, for augmentations that need images."""
        if len(self.inputs) != 3:
            raise ConfigError(
                [f"data.augment: {name!r} needs images (channels, rows, columns), not "
                 f"{self.inputs}"]
            )  # fmt: skip
        return self.black


@dataclass(frozen=True)
class Augmentations:
    """Some augmentations, one after another; none leaves the examples as they are."""

    steps: Sequence[Augmentation] = ()
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.steps)

    def of_client(self, round_: int, client: int) -> Callable[[Tensor, int], Tensor] | None:
        """From the batch of a step and its number to the batch, changed; None: nothing is."""
        if not self.steps:
            return None
        return lambda examples, step: self(examples, round_, client, step)

    def __call__(self, examples: Tensor, round_: int, client: int, step: int) -> Tensor:
        """The batch of a client's step, changed."""
        for place, augmentation in enumerate(self.steps):
            draws = generator(self.seed, "augment", round_, client, step, place)
            after = augmentation(examples, draws)
            if after.shape != examples.shape or after.dtype != examples.dtype:
                raise ConfigError(
                    [
                        f"data.augment: {augmentation!r} makes {after.dtype} of shape "
                        f"{tuple(after.shape)} of {examples.dtype} of shape {tuple(examples.shape)}"
                    ]
                )
            examples = after
        return examples
