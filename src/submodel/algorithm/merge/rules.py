"""Merge rules: the divisors of the sums of the clients' changes."""

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
    """The divisor D of delta_j = sum_i a_i m_i[j] (w_i[j] - w[j]) / D_j."""

    def divisor(self, holder_weight: Tensor, total_weight: float) -> Tensor | float:
        """Return D of every coordinate; coordinates without a holder are not divided, but stay.

        Args:
            holder_weight: for each coordinate, the total weight of its holders
            total_weight: the total weight of all clients
        """
        ...


@runtime_checkable
class HasSums(Protocol):
    """A rule with its own accumulator: it merges low-rank layers by their products."""

    def sums(self, whole: Tensors, pairs: Sequence[FactorPair]) -> Accumulator:
        """Return the accumulator of a round.

        Args:
            whole: the global tensors that come back from clients
            pairs: the pairs among them that are factors of a product
        """
        ...


@dataclass(frozen=True)
class Selective:
    """D_j = sum_i a_i m_i[j]: the mean over the holders of a weight (HeteroFL)."""

    def divisor(self, holder_weight: Tensor, total_weight: float) -> Tensor:  # noqa: ARG002
        """Return the holders' weight."""
        return holder_weight


@dataclass(frozen=True)
class FillIn:
    """D_j = sum_i a_i: a client that did not hold a weight counts as unchanged (paper)."""

    def divisor(self, holder_weight: Tensor, total_weight: float) -> float:  # noqa: ARG002
        """Return the weight of all clients."""
        return total_weight


_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
SELECTIVE, FILL_IN = Selective(), FillIn()


def merge_rule(name: str) -> MergeRule:
    """Return the rule of a name; it must need no options.

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
    """Apply the merge rule: w + change / D, where ``change`` sums a_i m_i (w_i - w) over clients.

    Args:
        whole: w.
        change: the sums of all coordinates, in float64.
        holder_weight: for each coordinate, the total weight of its holders.
        total_weight: the total weight of all clients.
        rule: the rule that defines D.
        is_held: whether every coordinate is known to have a holder.

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
    """Return whether w + 0 / D equals w bit for bit: true of all numbers in float64 except -0.

    Read as an integer, -0 is the least of all.
    """
    kind = _BITS.get(whole.dtype)
    if kind is None or whole.device.type != "cpu" or not whole.numel():
        return False
    return int(whole.view(kind).min()) != torch.iinfo(kind).min
