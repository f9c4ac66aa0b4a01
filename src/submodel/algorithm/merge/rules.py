"""Merge rules: what the sum of the clients' changes is divided by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor

from submodel.algorithm.registry import RULES
from submodel.model.cut import Tensors
from submodel.model.zoo.adapters import FactorPair
from submodel.options import Section

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


SELECTIVE, FILL_IN = Selective(), FillIn()


def merge_rule(name: str) -> MergeRule:
    """The rule of a name that needs no options.

    >>> merge_rule("fill_in")
    FillIn()
    """
    return RULES.find(name).make(Section())


def average(
    whole: Tensor, change: Tensor, holder_weight: Tensor, total_weight: float, rule: MergeRule
) -> Tensor:
    """The merge rule: w + change / D, where ``change`` sums a_i m_i (w_i - w) over the clients.

    ``holder_weight`` is the weight of those who held a coordinate, ``total_weight`` that of all.

    >>> whole, change = torch.zeros(3), torch.tensor([2.0, 2.0, 0.0])
    >>> holders = torch.tensor([2.0, 1.0, 0.0])
    >>> average(whole, change, holders, 4.0, FILL_IN)
    tensor([0.5000, 0.5000, 0.0000])
    >>> average(whole, change, holders, 4.0, SELECTIVE)
    tensor([1., 2., 0.])
    """
    new = (change / rule.divisor(holder_weight, total_weight)).add_(whole).to(whole.dtype)
    return torch.where(change == 0, whole, new)
