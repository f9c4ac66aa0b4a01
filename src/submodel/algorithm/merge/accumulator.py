"""One streaming accumulator whose sums have no order.

    delta_j = sum_i a_i m_i[j] (w_i[j] - w[j]) / D_j,
    D_j = sum_i a_i (``fill_in``, the paper) or sum_i a_i m_i[j] (``selective``, HeteroFL).

Floating-point sums depend on the order of their terms; ours do not. Every term is rounded once to
a multiple of 2^-62 and split into a multiple of 2^-24 and a remainder, which both add in float64
without error. So updates may arrive in any order, from any number of workers, and the result has
the same bits; memory is that of the model, whatever the number of clients.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor

from submodel.algorithm.merge.guards import misfit, unsound
from submodel.algorithm.merge.rules import MergeRule, average
from submodel.model.cut import Cut, LastCut, Tensors

LARGEST_WEIGHT_SUM = 2.0**14
"""The most that the client weights of one round may sum to, and the most clients it may have."""
# x + 1.5 * 2^(52 - k) - 1.5 * 2^(52 - k) rounds a small float64 x to a multiple of 2^-k
_TO_COARSE, _TO_FINE = 1.5 * 2.0**28, 1.5 * 2.0**-10
_CHUNK = 1 << 16  # values at a time: as many as stay in the processor's cache
_WAITING_VALUES = 1 << 21  # that updates may hold before they are added
_WEIGHT_STEP = 2.0**-20


def exact_weight(weight: float) -> float:
    """A client weight rounded to a multiple of 2^-20, so that sums of weights are exact.

    >>> exact_weight(1.0), exact_weight(0.1) * 2**20
    (1.0, 104858.0)
    """
    return max(1, round(weight / _WEIGHT_STEP)) * _WEIGHT_STEP


class Accumulator:
    """The sums of one round, coordinate by coordinate; the order of additions leaves no trace."""

    def __init__(self, whole: Tensors, rule: MergeRule) -> None:
        self._whole = whole
        self._rule = rule
        # per tensor: the coarse and the fine part of the sum, and the weight of those who held it
        self._sums = {n: t.new_zeros((3, *t.shape), dtype=torch.float64) for n, t in whole.items()}
        self._weight = 0.0
        self._count = 0
        self._waiting: dict[Hashable, tuple[Cut, list[tuple[Tensors, float]]]] = {}
        self._waiting_values = 0
        self._shapes = LastCut(lambda cut: {n: cut.shape(n, t.shape) for n, t in whole.items()})
        self.notes: dict[str, float] = {}  # what `merge` has to tell, for the round's metrics

    def refusal(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> str | None:
        """Why an update must not be merged, in words; None if it may."""
        reason = self.weight_refusal(weight) or misfit(self._shapes(cut), tensors)
        return reason or unsound(tensors)

    def weight_refusal(self, weight: float) -> str | None:
        """Why nobody of such a weight can be added any more; None if one can."""
        if max(self._weight + weight, self._count + 1) > LARGEST_WEIGHT_SUM:
            return f"a round takes clients up to a total weight of {LARGEST_WEIGHT_SUM:g}"
        return None

    def add(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> None:
        """Add one client's tensors, as they came back.

        Clients that hold the same are gathered and added at once: sums without order allow it.
        """
        self._weight += weight
        self._count += 1
        _, waiting = self._waiting.setdefault(cut.same_key, (cut, []))
        waiting.append((tensors, weight))
        self._waiting_values += sum(t.numel() for t in tensors.values())
        if self._waiting_values > _WAITING_VALUES:
            self._flush()

    def _flush(self) -> None:
        """Add what is waiting."""
        for cut, waiting in self._waiting.values():
            weights = torch.tensor([weight for _, weight in waiting], dtype=torch.float64)
            for name, whole in self._whole.items():
                new = torch.stack([tensors[name] for tensors, _ in waiting])
                terms = _terms(new, cut.part(name, whole), cut.mask(name), weights.to(new.device))
                cut.add(name, self._sums[name], terms, skip=1)
        self._waiting.clear()
        self._waiting_values = 0

    def sums(self) -> list[Tensor]:
        """What adds up over processes: all of it adds without error."""
        self._flush()
        counts = torch.tensor([self._weight, self._count], dtype=torch.float64)
        return [*self._sums.values(), counts]

    def set_sums(self, sums: Sequence[Tensor]) -> None:
        """Take the sums over all processes, in the order of `sums`."""
        self._sums = dict(zip(self._sums, sums[:-1], strict=True))
        self._weight, self._count = float(sums[-1][0]), int(sums[-1][1])

    @property
    def count(self) -> int:
        """How many updates were added."""
        return self._count

    @property
    def weight(self) -> float:
        """Their total weight."""
        return self._weight

    def holder_weights(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The weight of the clients who held each weight of these tensors."""
        self._flush()
        return {name: self._sums[name][2] for name in names}

    def coverage_masks(self) -> dict[str, Tensor]:
        """Which weights at least one client held."""
        return {name: weight > 0 for name, weight in self.holder_weights(self._sums).items()}

    def merge(self) -> dict[str, Tensor]:
        """The new tensors; what nobody held, or nobody moved, keeps its bits."""
        self._flush()
        tensors = {}
        for name, whole in self._whole.items():
            coarse, fine, holder_weight = self._sums[name]
            tensors[name] = average(whole, coarse + fine, holder_weight, self._weight, self._rule)
        return tensors


def coverage(accumulators: Sequence[Accumulator]) -> float:
    """The share of the weights that at least one client held, whichever sums it went into."""
    union: dict[str, Tensor] = {}
    for accumulator in accumulators:
        for name, mask in accumulator.coverage_masks().items():
            union[name] = union[name] | mask if name in union else mask
    return sum(int(t.sum()) for t in union.values()) / sum(t.numel() for t in union.values())


def _terms(new: Tensor, old: Tensor, mask: Tensor | None, weights: Tensor) -> Tensor:
    """The sum over clients of weight * (new - old), in two exact parts, and of the weights.

    ``new`` is clients x shape. Each term is split before it is added, so nothing is rounded twice.
    """
    sums = torch.empty((3, *old.shape), dtype=torch.float64, device=new.device)
    sums[2] = weights.sum()
    flat = [old.reshape(-1), sums[0].view(-1), sums[1].view(-1)]
    if mask is not None:
        flat.append(mask.to(new.device).reshape(-1))
    clients = new.reshape(len(new), -1)
    chunk = max(1, _CHUNK // len(new))
    uniform = bool((weights == 1).all())
    for start in range(0, clients.shape[1], chunk):
        o, coarse, fine, *mask_part = (t[start : start + chunk] for t in flat)
        term = clients[:, start : start + chunk].to(torch.float64, copy=True).sub_(o)
        if mask_part:
            term *= mask_part[0]
        if not uniform:
            term *= weights[:, None]
        coarse_term = term + _TO_COARSE
        coarse_term -= _TO_COARSE
        term -= coarse_term
        term += _TO_FINE
        term -= _TO_FINE
        torch.sum(coarse_term, 0, out=coarse)
        torch.sum(term, 0, out=fine)
    return sums
