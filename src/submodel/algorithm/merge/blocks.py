"""Whole tensors a few rows at a time: where cuts overlap, their sums meet here."""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import IO

import torch
from torch import Tensor

from submodel.algorithm.merge.holding import Holding
from submodel.model.cut import Tensors

_VALUES = 1 << 18  # of a block
_MOST_IN_MEMORY = 1 << 28  # bytes of sums in the shape of the model; more go to a file


def blocks_of(shape: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The rows of a tensor, from and to, that are worked on at a time: equal for all processes.

    >>> list(blocks_of((3, 1 << 17)))
    [(0, 2), (2, 3)]
    """
    rows = shape[0] if shape else 1
    step = max(1, _VALUES // max(1, math.prod(shape[1:])))
    return ((start, min(start + step, rows)) for start in range(0, rows, step))


def add_block(
    sums: Tensor, name: str, old: Tensor, start: int, stop: int, holdings: Sequence[Holding]
) -> bool:
    """Add what clients hold of some rows to the sums of these: coarse, fine, and holders' weight.

    Args:
        sums: 3 x the rows; changed in place.
        name: of the tensor.
        old: the rows of the global model.
        start: the first of them.
        stop: one after the last.
        holdings: the clients.

    Returns:
        whether anybody held anything of them.
    """
    is_held = False
    for holding in holdings:
        if (held_rows := holding.rows_between(name, start, stop)) is None:
            continue
        cut, rows = held_rows
        part = cut.part(name, old)
        width = math.prod(part.shape[1:])
        flat, mask = part.reshape(-1), cut.mask(name)
        terms = torch.empty((3, *part.shape), dtype=torch.float64, device=old.device)
        masks = None if mask is None else mask.reshape(-1)
        coarse, fine = holding.terms(name, rows, flat, masks, width)
        terms[0], terms[1] = coarse.view(part.shape), fine.view(part.shape)
        terms[2] = holding.weight
        cut.add(name, sums, terms, skip=1)
        is_held = True
    return is_held


class WholeSums:
    """Sums in the shape of the model, in memory or, where that is much, in a file without a name.

    Args:
        whole: the model.
    """

    def __init__(self, whole: Tensors) -> None:
        self._starts: dict[str, int] = {}
        end = 0
        for name, tensor in whole.items():
            self._starts[name] = end
            end += 3 * tensor.numel()
        self._memory: Tensor | None = None
        self._file: IO[bytes] | None = None
        if 8 * end <= _MOST_IN_MEMORY:
            self._memory = torch.zeros(end, dtype=torch.float64)
        else:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - ends with the sums
            weakref.finalize(self, self._file.close)
            self._file.truncate(8 * end)

    def read(self, name: str, start: int, shape: Sequence[int]) -> Tensor:
        """The sums of some rows, 3 x ``shape``; to be written again where they are changed.

        Args:
            name: of the tensor.
            start: the first row.
            shape: of the rows.
        """
        first, count = self._place(name, start, shape)
        if self._memory is not None:
            return self._memory[first : first + count].view(3, *shape)
        assert self._file is not None
        values = torch.empty(count, dtype=torch.float64)
        self._file.seek(8 * first)
        view, position = values.view(torch.uint8).numpy().data, 0
        while position < len(view):
            position += self._file.readinto(view[position:])  # type: ignore[attr-defined]
        return values.view(3, *shape)

    def write(self, name: str, start: int, sums: Tensor) -> None:
        """Keep the sums of some rows."""
        if self._file is not None:
            first, _ = self._place(name, start, sums.shape[1:])
            self._file.seek(8 * first)
            view, position = sums.contiguous().view(-1).view(torch.uint8).numpy().data, 0
            while position < len(view):
                position += self._file.write(view[position:])

    def _place(self, name: str, start: int, shape: Sequence[int]) -> tuple[int, int]:
        return self._starts[name] + 3 * start * math.prod(shape[1:]), 3 * math.prod(shape)
