"""Merge of low-rank layers by their products: the mean over the clients, factorised anew.

The mean of the factors is not that of the products: mean(B_i) mean(A_i) != mean(B_i A_i). So the
server takes the mean of the products itself,

    P_{r+1} = P_r + sum_i a_i (B_i A_i - B_S A_S) / sum_i a_i,

with P_r = B A the global product and B_S A_S the part of it, by the ranks S of client i, that the
client received: ranks that it did not hold count as unchanged. If all clients hold all, this is the
mean of the B_i A_i. The best approximation of the layer's rank (Eckart and Young) is the truncated
singular value decomposition; the largest values come first, their roots in both factors. The
truncation error is in the round's metrics. FlexLoRA (Bai et al. 2024) and FedHM (Yao et al. 2021)
merge in this way. FedEx-LoRA (Singhal et al. 2024) adds the truncated part to the frozen weights
instead, which is exact, but then these travel in every round: here they are sent once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.algorithm.merge.accumulator import Accumulator
from submodel.algorithm.merge.exact import misfit, unsound
from submodel.algorithm.merge.rules import MergeRule
from submodel.model.cut import Cut, LastCut, Tensors
from submodel.model.zoo.low_rank import FactorPair

_SMALLEST = 1e-7  # of the largest singular value: smaller ones are rounding errors of float32


@dataclass(frozen=True)
class Products:
    """The mean of low-rank products; for all other tensors, the mean over their holders."""

    def divisor(self, holder_weight: Tensor, total_weight: float) -> Tensor:  # noqa: ARG002
        """Return the holders' weight; every client holds a product."""
        return holder_weight

    def sums(self, whole: Tensors, pairs: Sequence[FactorPair]) -> Accumulator:
        """Return the accumulator of a round."""
        return ProductSums(whole, self, pairs)


@dataclass(frozen=True)
class Factorisation:
    """Two factors, and the Frobenius distance of their product from the original."""

    up: Tensor
    down: Tensor
    error: float


def factorise(product: Tensor, rank: int, idle_norm: float = 0.0) -> Factorisation:
    """Return the best factors of a rank, balanced, in float64; equal products have equal factors.

    If the product needs fewer ranks, some columns of ``up`` are zero, and the rows of ``down``
    there have ``idle_norm``: were both zero, neither would ever be trained again.

    >>> two = factorise(torch.diag(torch.tensor([4.0, 1.0, 2.0])), 2)
    >>> (two.up @ two.down).diag().round().tolist(), two.error
    ([4.0, 0.0, 2.0], 1.0)
    """
    u, values, v = torch.linalg.svd(product.double(), full_matrices=False)
    signs = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()  # a decomposition leaves signs open
    u, v = u * signs, v * signs.t()
    count = min(rank, len(values))
    is_busy = values[:count] > _SMALLEST * values[0]
    error = math.sqrt(
        float(values[count:].square().sum() + values[:count][~is_busy].square().sum())
    )
    roots = values[:count].sqrt()
    up = product.new_zeros((len(product), rank), dtype=torch.float64)
    down = product.new_zeros((rank, product.shape[1]), dtype=torch.float64)
    up[:, :count] = u[:, :count] * torch.where(is_busy, roots, 0.0)
    down[:count] = v[:count] * torch.where(is_busy, roots, idle_norm)[:, None]
    return Factorisation(up, down, error)


class ProductSums(Accumulator):
    """Sums in which a product replaces its two factors."""

    can_overwrite = False  # the merge compares products with the previous ones

    def __init__(self, whole: Tensors, rule: MergeRule, pairs: Sequence[FactorPair]) -> None:
        self._factors = {name: whole[name] for pair in pairs for name in (pair.up, pair.down)}
        self._products = {f"{pair.up} x {pair.down}": pair for pair in pairs}
        self._everything = whole
        self._shapes_back = LastCut(
            lambda cut: {n: cut.shape(n, t.shape) for n, t in whole.items()}
        )
        self._parts = LastCut(self._products_of_cut)
        others = {name: tensor for name, tensor in whole.items() if name not in self._factors}
        products = {name: pair.product(whole) for name, pair in self._products.items()}
        super().__init__({**others, **products}, rule)

    def _products_of_cut(self, cut: Cut) -> dict[str, Tensor]:
        """Return the products of the ranks that the client of a cut received."""
        parts = {name: cut.part(name, tensor) for name, tensor in self._factors.items()}
        return {name: pair.product(parts) for name, pair in self._products.items()}

    def refusal(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> str | None:
        """Return the reason why an update must not be merged; None if it may be."""
        reason = self.weight_refusal(weight) or misfit(self._shapes_back(cut), tensors)
        return reason or self._unsound(cut, tensors) or unsound(self._products_after(cut, tensors))

    def add(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> None:
        """Add one client's tensors, as received."""
        others = {name: tensor for name, tensor in tensors.items() if name not in self._factors}
        super().add(cut, others | self._products_after(cut, tensors), weight)

    def _products_after(self, cut: Cut, tensors: Tensors) -> dict[str, Tensor]:
        """Return the products of an update; ranks that the client did not hold are unchanged."""
        return {
            name: self._whole[name] + (pair.product(tensors) - self._parts(cut)[name])
            for name, pair in self._products.items()
        }

    @property
    def everything(self) -> Tensors:
        """Global tensors that come back from clients."""
        return self._everything

    def count_covered(self, names: AbstractSet[str]) -> int:
        """Count the weights that at least one client held; all of factors, which are new."""
        factors = sum(t.numel() for n, t in self._factors.items() if n in names)
        return super().count_covered(names - self._factors.keys()) + (factors if self.count else 0)

    def coverage_masks(self) -> Mapping[str, Tensor]:
        """Return masks of the weights that any client held; all of factors, which are new."""
        masks = super().coverage_masks()
        return {
            name: masks[name]
            if name in masks
            else torch.full_like(tensor, self.count > 0, dtype=torch.bool)
            for name, tensor in self._everything.items()
        }

    def merge(self, *, in_place: bool = False, writes: bool = True) -> dict[str, Tensor]:  # noqa: ARG002
        """Return the new tensors; factors of an unchanged product keep their bits."""
        assert not in_place
        means = super().merge()
        tensors = {n: means.get(n, t) for n, t in self._everything.items()}
        squared_error = total = 0.0
        for name, pair in self._products.items():
            up, down = (self._everything[n] for n in (pair.up, pair.down))
            total += float(means[name].square().sum())
            if torch.equal(means[name], self._whole[name]):
                continue
            idle_norm = float(down.double().norm()) / math.sqrt(len(down))
            factors = factorise(means[name], len(down), idle_norm)
            tensors[pair.up] = factors.up.to(up.dtype).view(up.shape)
            tensors[pair.down] = factors.down.to(down.dtype).view(down.shape)
            squared_error += factors.error**2
        share = math.sqrt(squared_error / total) if total else 0.0
        self.notes = {"product_error": math.sqrt(squared_error), "product_error_share": share}
        return tensors
