"""Merging low-rank layers by what they compute: the mean of the clients' products, factorised anew.

The mean of the factors is not that of the products: mean(B_i) mean(A_i) != mean(B_i A_i). Here the
server takes the mean of the products itself,

    P_{r+1} = P_r + sum_i a_i (B_i A_i - B_S A_S) / sum_i a_i,

with P_r = B A the global product and B_S A_S the part of it, by the ranks S of client i, that the
client was sent: ranks that it did not hold count as unchanged. If all hold all, that is the mean
of the B_i A_i. Its best approximation of the layer's rank (Eckart and Young) is its singular value
decomposition, cut off; the largest values come first, their roots in both factors. What is cut off
is in the round's metrics. So FlexLoRA (Bai et al. 2024) merges, and FedHM (Yao et al. 2021).
FedEx-LoRA (Singhal et al. 2024) adds what is cut off to the frozen weights instead, which is exact,
but then these travel in every round: here they are sent once.
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

_SMALLEST = 1e-7  # of the largest singular value: less is rounding of float32


@dataclass(frozen=True)
class Products:
    """The mean of low-rank products; of all other tensors, that over those who held a weight."""

    def divisor(self, holder_weight: Tensor, total_weight: float) -> Tensor:  # noqa: ARG002
        """Those who held it; a product is everybody's."""
        return holder_weight

    def sums(self, whole: Tensors, pairs: Sequence[FactorPair]) -> Accumulator:
        """The sums of a round."""
        return ProductSums(whole, self, pairs)


@dataclass(frozen=True)
class Factorisation:
    """Two factors, and how far their product is from what they were made of (Frobenius)."""

    up: Tensor
    down: Tensor
    error: float


def factorise(product: Tensor, rank: int, idle_norm: float = 0.0) -> Factorisation:
    """The best factors of a rank, balanced, in float64; equal products have equal factors.

    ``idle_norm`` is that of the rows of ``down`` whose columns of ``up`` are zero, as the product
    needs fewer ranks: were both zero, neither would ever be trained again.

    >>> two = factorise(torch.diag(torch.tensor([4.0, 1.0, 2.0])), 2)
    >>> (two.up @ two.down).diag().round().tolist(), two.error
    ([4.0, 0.0, 2.0], 1.0)
    """
    u, values, v = torch.linalg.svd(product.double(), full_matrices=False)
    signs = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()  # a decomposition leaves them open
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
    """Sums in which a product stands for its two factors."""

    can_overwrite = False  # products are compared with those before

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
        """What the client of a cut was sent, as products."""
        parts = {name: cut.part(name, tensor) for name, tensor in self._factors.items()}
        return {name: pair.product(parts) for name, pair in self._products.items()}

    def refusal(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> str | None:
        """Why an update must not be merged, in words; None if it may."""
        reason = self.weight_refusal(weight) or misfit(self._shapes_back(cut), tensors)
        return reason or self._unsound(cut, tensors) or unsound(self._products_after(cut, tensors))

    def add(self, cut: Cut, tensors: Tensors, weight: float = 1.0) -> None:
        """Add one client's tensors, as they came back."""
        others = {name: tensor for name, tensor in tensors.items() if name not in self._factors}
        super().add(cut, others | self._products_after(cut, tensors), weight)

    def _products_after(self, cut: Cut, tensors: Tensors) -> dict[str, Tensor]:
        """The products of an update; ranks that the client did not hold are as they were."""
        return {
            name: self._whole[name] + (pair.product(tensors) - self._parts(cut)[name])
            for name, pair in self._products.items()
        }

    @property
    def everything(self) -> Tensors:
        """The global tensors that come back from clients."""
        return self._everything

    def count_covered(self, names: AbstractSet[str]) -> int:
        """How many weights at least one client held; of factors all, as they are made anew."""
        factors = sum(t.numel() for n, t in self._factors.items() if n in names)
        return super().count_covered(names - self._factors.keys()) + (factors if self.count else 0)

    def coverage_masks(self) -> Mapping[str, Tensor]:
        """Which weights at least one client held; of factors all, as they are made anew."""
        masks = super().coverage_masks()
        return {
            name: masks[name]
            if name in masks
            else torch.full_like(tensor, self.count > 0, dtype=torch.bool)
            for name, tensor in self._everything.items()
        }

    def merge(self, *, in_place: bool = False, writes: bool = True) -> dict[str, Tensor]:  # noqa: ARG002
        """The new tensors; factors whose product nobody moved keep their bits."""
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
