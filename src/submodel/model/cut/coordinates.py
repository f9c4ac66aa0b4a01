"""Cuts by single weights: masks."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.model.axes.layout import Indices
from submodel.model.cut.base import Cut
from submodel.model.cut.flat import FlatLayout
from submodel.model.cut.notebook import coordinate_cut_html


@dataclass(frozen=True)
class CoordinateCut:
    """Single weights: a 0/1 mask per tensor; a tensor that is not named is whole."""

    masks: Mapping[str, Tensor]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return coordinate_cut_html(self)

    def part(self, name: str, whole: Tensor) -> Tensor:
        """The masked tensor m (.) w, in its full shape; what is not held is 0, never -0."""
        mask = self.mask(name)
        return whole if mask is None else whole.where(mask.bool().to(whole.device), 0)

    def add(self, name: str, whole: Tensor, value: Tensor | float, skip: int = 0) -> None:  # noqa: ARG002 - masks broadcast
        """Add ``value`` to the kept weights of ``whole``, in place."""
        mask = self.mask(name)
        whole.add_(value if mask is None else mask.to(whole) * value)

    def put(self, name: str, whole: Tensor, value: Tensor | bool) -> None:
        """Write ``value``, of the shape of the whole, to the kept weights of ``whole``."""
        mask = self.mask(name)
        if mask is None:
            whole.copy_(torch.as_tensor(value))
        else:
            is_kept = mask.bool().to(whole.device)
            whole.copy_(torch.where(is_kept, torch.as_tensor(value).to(whole), whole))

    def places(self, name: str) -> tuple[tuple[int, Indices], ...]:  # noqa: ARG002 - of any tensor
        """None: the tensors keep their shapes."""
        return ()

    def mask(self, name: str) -> Tensor | None:
        """The tensor's mask."""
        return self.masks.get(name)

    def shape(self, name: str, whole: Sequence[int]) -> tuple[int, ...]:  # noqa: ARG002 - masked
        """That of the whole."""
        return tuple(whole)

    def value_count(self, name: str, shape: Sequence[int]) -> int:
        """The number of ones in the mask."""
        mask = self.mask(name)
        return math.prod(shape) if mask is None else int(mask.sum())

    def flat_index(self, layout: FlatLayout) -> Tensor | None:  # noqa: ARG002 - of any tensors
        """None: there are masks."""
        return None

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """All coordinate cuts have the shapes of the whole."""
        return ()

    @property
    def same_key(self) -> Hashable:
        """Masks are not compared."""
        return id(self) if self.masks else "whole"


WHOLE: Cut = CoordinateCut({})
"""The cut that holds everything."""
