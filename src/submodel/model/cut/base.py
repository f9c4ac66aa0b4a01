"""What a cut is."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, Protocol

from torch import Tensor

from submodel.model.axes.layout import Indices
from submodel.model.cut.flat import FlatLayout

Tensors = Mapping[str, Tensor]
Granularity = Literal["unit", "coordinate"]
Where = slice | Tensor
Plan = Mapping[str, tuple[tuple[int, Indices], ...]]
"""Tensor -> (dimension, kept positions), for each dimension that is cut."""
COORDINATES = "coordinates"
"""The name of the one axis at coordinate granularity: all weights as a flat vector."""


class Cut(Protocol):
    """What a client holds of the whole."""

    def part(self, name: str, whole: Tensor) -> Tensor:
        """What the client holds of one tensor; may share its memory."""
        ...

    def add(self, name: str, whole: Tensor, value: Tensor | float, skip: int = 0) -> None:
        """Add ``value`` to the held part of ``whole``, in place; ``skip`` leading dimensions."""
        ...

    def put(self, name: str, whole: Tensor, value: Tensor | bool) -> None:
        """Write ``value`` to the held part of ``whole``, in place."""
        ...

    def places(self, name: str) -> tuple[tuple[int, Indices], ...]:
        """The kept positions of a tensor along each dimension that is really cut."""
        ...

    def mask(self, name: str) -> Tensor | None:
        """The 0/1 mask that training must respect; None where the tensor itself is smaller."""
        ...

    def shape(self, name: str, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape that a tensor of the shape ``whole`` has at the client."""
        ...

    def value_count(self, name: str, shape: Sequence[int]) -> int:
        """How many values of a tensor of this shape the client holds."""
        ...

    def flat_index(self, layout: FlatLayout) -> Tensor | None:
        """Where small tensors have what the client holds; None where they keep their shapes."""
        ...

    @property
    def shape_key(self) -> tuple[tuple[str, int], ...]:
        """Equal for cuts whose sub-models have equal shapes."""
        ...

    @property
    def same_key(self) -> Hashable:
        """Equal for cuts that are known to hold the same."""
        ...


def cut_digest(cut: Cut) -> str | None:
    """A hash of what a cut holds, equal in all processes; None if that is not known."""
    key = cut.same_key
    return None if isinstance(key, int) else hashlib.sha256(repr(key).encode()).hexdigest()


def count_values(cut: Cut, whole: Tensors) -> int:
    """How many values ``cut`` holds in all."""
    return sum(cut.value_count(name, tensor.shape) for name, tensor in whole.items())
