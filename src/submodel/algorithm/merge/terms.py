"""The terms of a merge, in two parts that add in float64 without error, whatever their order.

Every term a_i m_i (w_i - w) is rounded once to a multiple of 2^-62 and split into a multiple of
2^-24 (coarse) and a remainder (fine). Sums of either are exact as long as the guards hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

# x + 1.5 * 2^(52 - k) - 1.5 * 2^(52 - k) rounds a small float64 x to a multiple of 2^-k
_TO_COARSE, _TO_FINE = 1.5 * 2.0**28, 1.5 * 2.0**-10
_FINEST = 2.0**62
_SMALL = 2.0**-10  # with the fine parts of larger terms, sums stay below 2^-9: multiples of 2^-62
_SPAN, _LEAST_RESTORED = 2.0**-24, 2.0**-36
CHUNK = 1 << 16
"""Values at a time: as many as stay in the processor's cache."""


def chunk_slices(count: int) -> Iterator[slice]:
    """The stretches of so many values that are worked on at a time.

    >>> list(chunk_slices(CHUNK + 2))
    [slice(0, 65536, None), slice(65536, 65538, None)]
    """
    return (slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK))


def exact_terms(
    new: Sequence[Tensor], old: Tensor, mask: Tensor | None, weights: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The sum over clients of weight * mask * (new - old), as its coarse and its fine part.

    Each term is split before it is added, so nothing is rounded twice.

    Args:
        new: the same stretch of a tensor of every client, flat.
        old: that of the global model.
        mask: 0 where the clients did not hold a weight; None: they held all.
        weights: of the clients.

    >>> old, new = torch.tensor([1.0]), [torch.tensor([3.0]), torch.tensor([1.5])]
    >>> exact_terms(new, old, None, [1.0, 2.0])
    (tensor([3.], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """
    together = max(1, CHUNK // max(1, len(old)))
    coarse = fine = None
    for start in range(0, len(new), together):
        part = _split(new[start : start + together], old, mask, weights[start : start + together])
        coarse = part[0] if coarse is None else coarse.add_(part[0])
        fine = part[1] if fine is None else fine.add_(part[1])
    assert coarse is not None
    assert fine is not None
    return coarse, fine


def _split(
    new: Sequence[Tensor], old: Tensor, mask: Tensor | None, weights: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """The same for some clients at once: a stack of many, where each has few values."""
    if len(new) == 1:
        return split_term(client_term(new[0], old, mask, weights[0]))
    term = torch.stack(list(new)).to(old.device, torch.float64, copy=True).sub_(old)
    if mask is not None:
        term *= mask.to(term.device)
    if any(weight != 1 for weight in weights):
        term *= torch.tensor(weights, dtype=torch.float64, device=term.device)[:, None]
    coarse, fine = split_term(term)
    return coarse.sum(0), fine.sum(0)


def client_term(new: Tensor, old: Tensor, mask: Tensor | None, weight: float) -> Tensor:
    """One client's weight * mask * (new - old), in float64, not rounded to anything yet.

    Args:
        new: some values of the client.
        old: those of the global model.
        mask: 0 where the client did not hold a weight; None: it held all.
        weight: of the client.

    >>> client_term(torch.tensor([3.0]), torch.tensor([1.0]), None, 2.0)
    tensor([4.], dtype=torch.float64)
    """
    term = new.to(old.device, torch.float64, copy=True).sub_(old)
    if mask is not None:
        term *= mask.to(term.device)
    if weight != 1:
        term *= weight
    return term


def split_term(term: Tensor) -> tuple[Tensor, Tensor]:
    """The coarse and the fine part; the latter takes the term's memory.

    Args:
        term: in float64.

    >>> split_term(torch.tensor([1 + 2.0**-40], dtype=torch.float64))[1].item() * 2**40
    1.0
    """
    coarse = term + _TO_COARSE
    coarse -= _TO_COARSE
    term -= coarse
    term += _TO_FINE
    term -= _TO_FINE
    return coarse, term


def lone_change(term: Tensor) -> Tensor:
    """Both parts of a lone term together: a multiple of 2^-62, in place.

    Args:
        term: in float64.

    >>> lone_change(torch.tensor([2.0**-62 * 1.75, 3.0], dtype=torch.float64)).tolist()
    [4.336808689942018e-19, 3.0]
    """
    return term.mul_(_FINEST).round_().mul_(1 / _FINEST)


def is_restored(new: Tensor, largest: float, weight: float) -> bool:
    """Whether old + a (new - old) / a, as a merge computes it, is ``new`` to the bit.

    With x = new, y = old and a = weight, the sum is x to within 2^-51 (|x| + |y|) + 2^-63 / a: four
    roundings in float64, and one to a multiple of 2^-62. Values of float32 have no other within
    2^-25 |x| of x to which that could be rounded. It is less if |x| >= 2^-24 |y| and
    |x| >= 2^-36 / a, which also tells whoever moved a value from who did not: neighbours of x
    differ from it by 2^-60 / a or more. Zeros, whose sign may change, are never restored.

    Args:
        new: some values of the only client who holds them.
        largest: no old value is larger, nor any of those with the other sign.
        weight: of the client.

    >>> is_restored(torch.tensor([0.1, -2.0]), 3.0, 1.5)
    True
    >>> is_restored(torch.tensor([1e-9]), 1.0, 1.0)
    False
    """
    if new.dtype != torch.float32 or not new.numel():
        return False
    return float(new.abs().min()) >= max(_SPAN * largest, _LEAST_RESTORED / min(1.0, weight))


def round_small(term: Tensor, count: int) -> bool:
    """Round a term, in place, if it may all be a fine part: so small that sums stay exact.

    Args:
        term: in float64.
        count: how many of them are summed at most.

    >>> round_small(torch.tensor([2.0**-12], dtype=torch.float64), 4)
    True
    """
    least, most = torch.aminmax(term)
    if max(-float(least), float(most)) * count > _SMALL:
        return False
    term += _TO_FINE
    term -= _TO_FINE
    return True
