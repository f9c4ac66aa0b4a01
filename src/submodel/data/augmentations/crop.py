"""Random crops of padded images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from submodel.data.augmentations.base import AugmentContext
from submodel.options import Section

_PADDING = 4  # pixels on every side, as all published CIFAR tables have it


@dataclass(frozen=True)
class Crop:
    """Pads images on every side and cuts them to their size again, somewhere.

    >>> images = torch.arange(4.0).view(1, 1, 2, 2)
    >>> Crop(padding=1)(images, np.random.Generator(np.random.Philox(0))).shape
    torch.Size([1, 1, 2, 2])
    """

    padding: int = _PADDING
    black: tuple[float, ...] = ()  # by channel; empty: nought

    @classmethod
    def configured(cls, options: Section, context: AugmentContext) -> Self:  # noqa: ARG003
        """Padded with black, which is not nought where pixels are normalised."""
        return cls(black=context.needed_images("crop"))

    def __call__(self, examples: Tensor, generator: np.random.Generator) -> Tensor:
        """Every image from a place of its own."""
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
