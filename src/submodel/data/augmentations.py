"""Augmentations: random changes of the examples of a training batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor

from submodel.core.errors import ConfigError
from submodel.core.options import Section
from submodel.core.randomness import generator

_PADDING = 4  # pixels on every side, as in all published CIFAR tables


class Augmentation(Protocol):
    """Changes the examples of one client's batch at random.

    All randomness comes from the generator, which follows from (seed, round, client, step), so a
    resumed run, and every engine, sees the same examples.
    """

    def __call__(self, examples: Tensor, generator: np.random.Generator) -> Tensor:
        """Return examples of the same shape, without changing the given ones."""


@dataclass(frozen=True)
class AugmentContext:
    """The context in which an augmentation is made."""

    inputs: tuple[int, ...]  # the shape of one example
    black: tuple[float, ...]  # the value of a black pixel in every channel

    def needed_images(self, name: str) -> tuple[float, ...]:
        """Return the black pixel; raises `ConfigError` unless the inputs are images."""
        if len(self.inputs) != 3:
            raise ConfigError(
                f"data.augment: {name!r} needs images (channels, rows, columns), not {self.inputs}"
            )
        return self.black


@dataclass(frozen=True)
class Augmentations:
    """A sequence of augmentations; an empty one changes nothing."""

    steps: Sequence[Augmentation] = ()
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.steps)

    def of_client(self, round_: int, client: int) -> Callable[[Tensor, int], Tensor] | None:
        """Return a function from a batch and its step number to the changed batch, if any."""
        if not self.steps:
            return None
        return lambda examples, step: self(examples, round_, client, step)

    def __call__(self, examples: Tensor, round_: int, client: int, step: int) -> Tensor:
        """Change the batch of a client's step."""
        for place, augmentation in enumerate(self.steps):
            draws = generator(self.seed, "augment", round_, client, step, place)
            after = augmentation(examples, draws)
            if after.shape != examples.shape or after.dtype != examples.dtype:
                raise ConfigError(
                    f"data.augment: {augmentation!r} makes {after.dtype} of shape "
                    f"{tuple(after.shape)} of {examples.dtype} of shape {tuple(examples.shape)}"
                )
            examples = after
        return examples


@dataclass(frozen=True)
class Crop:
    """Pads images on every side and crops them to their size at random positions.

    >>> images = torch.arange(4.0).view(1, 1, 2, 2)
    >>> Crop(padding=1)(images, np.random.Generator(np.random.Philox(0))).shape
    torch.Size([1, 1, 2, 2])
    """

    padding: int = _PADDING
    black: tuple[float, ...] = ()  # by channel; empty: zero

    @classmethod
    def configured(cls, options: Section, context: AugmentContext) -> Self:  # noqa: ARG003
        """Make the augmentation with black padding, which is not zero if pixels are normalised."""
        return cls(black=context.needed_images("crop"))

    def __call__(self, examples: Tensor, generator: np.random.Generator) -> Tensor:
        """Crop every image at its own position."""
        count, channels, height, width = examples.shape
        size = 2 * self.padding
        canvas = examples.new_zeros(count, channels, height + size, width + size)
        if self.black:
            canvas += canvas.new_tensor(self.black)[:, None, None]
        inner = slice(self.padding, -self.padding or None)
        canvas[..., inner, inner] = examples
        corners = torch.from_numpy(generator.integers(0, size + 1, (2, count)))
        corners = corners.to(examples.device)
        rows = corners[0, :, None] + torch.arange(height, device=examples.device)
        columns = corners[1, :, None] + torch.arange(width, device=examples.device)
        images = torch.arange(count, device=examples.device)[:, None, None]
        return canvas.permute(0, 2, 3, 1)[images, rows[:, :, None], columns[:, None]].permute(
            0, 3, 1, 2
        )


@dataclass(frozen=True)
class Flip:
    """Mirrors each image horizontally with probability 1/2.

    >>> image = torch.tensor([[[[1.0, 2.0]]]])
    >>> both = Flip()(image.expand(20, 1, 1, 2), np.random.Generator(np.random.Philox(0)))
    >>> sorted({tuple(row) for row in both.view(20, 2).tolist()})
    [(1.0, 2.0), (2.0, 1.0)]
    """

    @classmethod
    def configured(cls, options: Section, context: AugmentContext) -> Self:  # noqa: ARG003
        """Make the augmentation; the inputs must be images."""
        context.needed_images("flip")
        return cls()

    def __call__(self, examples: Tensor, generator: np.random.Generator) -> Tensor:
        """Mirror each image by its own draw."""
        is_mirrored = torch.from_numpy(generator.random(len(examples)) < 0.5).to(examples.device)
        return torch.where(is_mirrored[:, None, None, None], examples.flip(-1), examples)
