"""Exact sums, independent of order: every term has two parts that float64 adds without error.

Every term a_i m_i (w_i - w) is rounded once to a multiple of 2^-62 and split into a multiple of
2^-24 (coarse) and a remainder (fine). Sums of either are exact as long as no weight of an update
exceeds `LARGEST_VALUE`, which the guard ensures. Statistics of raw features may be larger: their
terms are divided by 2^46 and summed separately.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from submodel.model.cut import Cut, Tensors

if TYPE_CHECKING:
    from submodel.algorithm.merge.waiting import Exchange

LARGEST_VALUE = 2.0**14
"""Bound of weights: no sane model exceeds it. With the next bound, sums stay below 2^53: exact."""
LARGEST_STATISTIC = 2.0**60
"""Bound of statistics: raw features of a billion have a variance of 2^60."""
LARGEST_WEIGHT_SUM = 2.0**14
"""Bound of the total client weight of a round, and of its number of clients."""
CHUNK = 1 << 16
"""Number of values processed at a time, which fit in the processor's cache."""
_WEIGHT_STEP = 2.0**-20
# x + 1.5 * 2^(52 - k) - 1.5 * 2^(52 - k) rounds a small float64 x to a multiple of 2^-k
_TO_COARSE, _TO_FINE = 1.5 * 2.0**28, 1.5 * 2.0**-10
_SMALL = 2.0**-10  # with the fine parts of larger terms, sums stay below 2^-9: multiples of 2^-62
_SCALE = LARGEST_STATISTIC / LARGEST_VALUE


def exact_weight(weight: float) -> float:
    """Round a client weight to a multiple of 2^-20, so that sums of weights are exact.

    >>> exact_weight(1.0), exact_weight(0.1) * 2**20
    (1.0, 104858.0)
    """
    return max(1, round(weight / _WEIGHT_STEP)) * _WEIGHT_STEP


def exact_terms(
    new: Sequence[Tensor],
    old: Tensor,
    mask: Tensor | None,
    weights: Sequence[float],
    count: float = LARGEST_WEIGHT_SUM,
) -> tuple[Tensor, Tensor | None]:
    """Sum weight * mask * (new - old) over clients; return its fine and coarse part, if any.

    ``new`` is the same stretch of a tensor of every client, flat; ``mask`` is 0 for a weight that
    was not held. ``count`` is at least the number of clients in the round.

    >>> old, new = torch.tensor([1.0]), [torch.tensor([3.0]), torch.tensor([1.5])]
    >>> exact_terms(new, old, None, [1.0, 2.0])
    (tensor([0.], dtype=torch.float64), tensor([3.], dtype=torch.float64))
    """
    together = max(1, CHUNK // max(1, len(old)))  # stack several clients with few values each
    fine = coarse = None
    for start in range(0, len(new), together):
        group = slice(start, start + together)
        parts = split(changes(new[group], old, mask, weights[group]), count)
        own_fine, own_coarse = (p if p is None else p.sum(0) if len(p) > 1 else p[0] for p in parts)
        fine, coarse = add(fine, own_fine), add(coarse, own_coarse)
    assert fine is not None
    return fine, coarse


def add(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    """Add two tensors, in the memory of the first; None is zero."""
    if total is None or part is None:
        return part if total is None else total
    return total.add_(part)


def changes(
    new: Sequence[Tensor], old: Tensor, mask: Tensor | None, weights: Sequence[float]
) -> Tensor:
    """Return each client's weight * mask * (new - old) in float64, as a stack, unrounded."""
    stack = torch.stack(list(new)) if len(new) > 1 else new[0][None]
    terms = stack.to(old.device, torch.float64, copy=True).sub_(old)
    if mask is not None:
        terms *= mask.to(terms.device)
    if any(weight != 1 for weight in weights):
        columns = torch.tensor(weights, dtype=torch.float64, device=terms.device)
        terms *= columns.view(-1, *(1 for _ in old.shape))
    return terms


def split(terms: Tensor, count: float = LARGEST_WEIGHT_SUM) -> tuple[Tensor, Tensor | None]:
    """Return the fine part, in the terms' memory, and the coarse part unless all terms are small.

    ``count`` is at least the number of terms in the sum.

    >>> fine, coarse = split(torch.tensor([1 + 2.0**-40], dtype=torch.float64))
    >>> fine.item() * 2**40, coarse.item(), split(fine)[1]
    (1.0, 1.0, None)
    """
    least, most = torch.aminmax(terms) if terms.numel() else (0.0, 0.0)
    coarse = None
    if max(-float(least), float(most)) * count > _SMALL:
        coarse = terms + _TO_COARSE
        coarse -= _TO_COARSE
        terms -= coarse
    terms += _TO_FINE
    terms -= _TO_FINE
    return terms, coarse


def misfit(shapes: Mapping[str, Sequence[int]], tensors: Tensors) -> str | None:
    """Describe a missing, unknown or misshapen tensor; None if all fit.

    >>> misfit({"w": (2,)}, {"w": torch.ones(3)})
    'w has shape (3,), which does not fit the cut'
    """
    if missing := shapes.keys() ^ tensors.keys():
        return f"tensors do not match: {sorted(missing)[0]!r} is missing or unknown"
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != tuple(shape):
            return f"{name} has shape {tuple(tensors[name].shape)}, which does not fit the cut"
    return None


def unsound(
    tensors: Tensors,
    statistics: AbstractSet[str] = frozenset(),
    before: Callable[[str], Tensor] | None = None,
) -> str | None:
    """Describe a tensor with an unreasonable value; None if there is none.

    ``statistics`` are buffers on the scale of the data, not weights. A tensor that still has its
    values ``before`` is accepted.

    >>> unsound({"w": torch.tensor([1.0, float("inf")])})
    'w holds a value that is not finite'
    """
    if not tensors:
        return None
    norms = torch.stack(torch._foreach_norm(list(tensors.values()))).tolist()
    if all(norm <= LARGEST_VALUE for norm in norms):
        return None  # no value is larger than the norm
    for name, tensor in tensors.items():
        largest = max(map(abs, map(float, tensor.aminmax()))) if tensor.numel() else 0.0
        if not math.isfinite(largest):
            return f"{name} holds a value that is not finite"
        most = LARGEST_STATISTIC if name in statistics else LARGEST_VALUE
        if largest > most and (before is None or not torch.equal(before(name), tensor)):
            return f"{name} holds a value of size {largest:.3g}: training diverged"
    return None


class LargeStatistics:
    """Large values of a round's updates, in separate sums in the shape of the model.

    The sums of weights count such a value as unchanged; the merge combines both.
    """

    def __init__(self, whole: Tensors, names: AbstractSet[str]) -> None:
        self._whole = {name: tensor for name, tensor in whole.items() if name in names}
        self._were_large = not _are_small(self._whole)
        self._sums: dict[str, Tensor] = {}  # fine and coarse

    def take(self, cut: Cut, tensors: Tensors, weight: float) -> Tensors:
        """Add the large values of an update; return its tensors with the old values there."""
        updated = {name: tensors[name] for name in self._whole}
        if not self._were_large and _are_small(updated):
            return tensors
        taken = {}
        for name, whole in self._whole.items():
            new, old = tensors[name], cut.part(name, whole)
            is_large = (new.abs() > LARGEST_VALUE) | (old.abs() > LARGEST_VALUE)
            if torch.equal(new, old) or not bool(is_large.any()):
                continue
            term = changes([new], old, is_large, [weight])[0].div_(_SCALE)
            sums = self._sums.setdefault(
                name, torch.zeros((2, *whole.shape), dtype=torch.float64, device=whole.device)
            )
            for total, part in zip(sums, split(term), strict=True):
                if part is not None:
                    cut.add(name, total, part)
            taken[name] = torch.where(is_large, old, new)
        return {**tensors, **taken}

    def join(self, exchange: Exchange) -> None:
        """Make the sums those of all processes from now on."""
        if not self._whole:
            return
        words = exchange.gather(json.dumps(sorted(self._sums)))
        for name in sorted({name for word in words for name in json.loads(word or "[]")}):
            shape = (2, *self._whole[name].shape)
            sums = self._sums.get(name, torch.zeros(shape, dtype=torch.float64))
            exchange.add(sums)
            self._sums[name] = sums

    def changes(self) -> dict[str, Tensor]:
        """Return the sums of the large terms, by name of the tensor."""
        return {name: (fine + coarse) * _SCALE for name, (fine, coarse) in self._sums.items()}


def _are_small(tensors: Tensors) -> bool:
    """Return whether all values are small, judged by the norms."""
    norms = torch._foreach_norm(list(tensors.values())) if tensors else []
    return all(norm <= LARGEST_VALUE for norm in norms)
