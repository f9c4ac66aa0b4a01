"""Random mirror images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from submodel.data.augmentations.base import AugmentContext
from submodel.options import Section


@dataclass(frozen=True)
class Flip:
    """Mirrors each image, left to right, with a chance of a half.

    >>> image = torch.tensor([[[[1.0, 2.0]]]])
    >>> both = Flip()(image.expand(20, 1, 1, 2), np.random.Generator(np.random.Philox(0)))
    >>> sorted({tuple(row) for row in both.view(20, 2).tolist()})
    [(1.0, 2.0), (2.0, 1.0)]
    """

    @classmethod
    def configured(cls, options: Section, context: AugmentContext) -> Self:  # noqa: ARG003
        """Of images."""
        context.needed_images("flip")
        return cls()

    def __call__(self, examples: Tensor, generator: np.random.Generator) -> Tensor:
        """Each by a draw of its own."""
        is_mirrored = torch.from_numpy(generator.random(len(examples)) < 0.5).to(examples.device)
        return torch.where(is_mirrored[:, None, None, None], examples.flip(-1), examples)
