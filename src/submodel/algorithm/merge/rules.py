"""Merge rules: what the sum of the clients' changes is divided by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from submodel.algorithm.builtin_rules import RULES
from submodel.core.options import Section
from submodel.model.cut import Tensors
from submodel.model.zoo.low_rank import FactorPair

if TYPE_CHECKING:
    from submodel.algorithm.merge.accumulator import Accumulator


class MergeRule(Protocol):
    """The denominator D of delta_j = sum_i a_i m_i[j] (w_i[j] - w[j]) / D_j."""

    def divisor(self, holder_weight: Tensor, total_weight: float) -> Tensor | float:
        """D of every coordinate; what nobody held is not divided: it stays.

        Args:
            holder_weight: of each coordinate, the weight of the clients who held it
            total_weight: that of all clients
        """
        ...


@runtime_checkable
class HasSums(Protocol):
    """A rule with sums of its own: it merges low-rank layers by their products."""

    def sums(self, whole: Tensors, pairs: Sequence[FactorPair]) -> Accumulator:
        """Those of a round.

        Args:
            whole: the global tensors that come back from clients
            pairs: which of them are factors of a product
        """
        ...


@dataclass(frozen=True)
class Selective:
    """D_j = sum_i a_i m_i[j]: the mean over those who held a weight (HeteroFL)."""

    def divisor(self, holder_weight: Tensor, total_weight: float) -> Tensor:  # noqa: ARG002
        """Those who held it."""
        return holder_weight


@dataclass(frozen=True)
class FillIn:
    """D_j = sum_i a_i: whoever did not hold a weight counts as one who did not move it (paper)."""

    def divisor(self, holder_weight: Tensor, total_weight: float) -> float:  # noqa: ARG002
        """Everybody."""
        return total_weight


_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
SELECTIVE, FILL_IN = Selective(), FillIn()


def merge_rule(name: str) -> MergeRule:
    """The rule of a name that needs no options.

    >>> merge_rule("fill_in")
    FillIn()
    """
    return RULES.find(name).make(Section())


def average(
    whole: Tensor,
    change: Tensor,
    holder_weight: Tensor,
    total_weight: float,
    rule: MergeRule,
    *,
    is_held: bool = False,
) -> Tensor:
    """The merge rule: w + change / D, where ``change`` sums a_i m_i (w_i - w) over the clients.

    Args:
        whole: w.
        change: of every coordinate, in float64.
        holder_weight: the weight of those who held a coordinate.
        total_weight: that of all.
        rule: which D it is.
        is_held: whether every coordinate has a holder, as far as is known.

    >>> whole, change = torch.zeros(3), torch.tensor([2.0, 2.0, 0.0])
    >>> holders = torch.tensor([2.0, 1.0, 0.0])
    >>> average(whole, change, holders, 4.0, FILL_IN)
    tensor([0.5000, 0.5000, 0.0000])
    >>> average(whole, change, holders, 4.0, SELECTIVE)
    tensor([1., 2., 0.])
    """
    divisor = rule.divisor(holder_weight, total_weight)
    new = (change / divisor).add_(whole).to(whole.dtype)
    is_positive = (
        is_held if divisor is holder_weight else isinstance(divisor, float) and divisor > 0
    )
    if is_positive and _keeps_bits_unmoved(whole):
        return new
    return torch.where(change == 0, whole, new)


def _keeps_bits_unmoved(whole: Tensor) -> bool:
    """Whether w + 0 / D is w to the bit: of all numbers in float64 but -0.

    Read as a whole number, -0 is the least of all.
    """
    kind = _BITS.get(whole.dtype)
    if kind is None or whole.device.type != "cpu" or not whole.numel():
        return False
    return int(whole.view(kind).min()) != torch.iinfo(kind).min
