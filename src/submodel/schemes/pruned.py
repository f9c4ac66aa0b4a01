"""One sparse model for all clients, whose mask adapts to the gradients (PruneFL)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from submodel.core.options import Count, Positive, Section
from submodel.model.axes.declare import units_held
from submodel.schemes.scheme import (
    Adaptation,
    Draw,
    Floats,
    Mask,
    RunFacts,
    Scheme,
    SchemeMemory,
)

Reentry = Literal["zero", "kept"]
"""The value of a weight that reenters: zero, or its value when it left."""


@dataclass(frozen=True)
class Pruned(Scheme):
    """One mask for all, adapted to gradients and costs (Jiang, Wang, Valls, Ko, Lee, Leung,
    Tassiulas 2022, "Model pruning enables efficient federated learning on edge devices", PruneFL).

    Before round 0, and every ``every`` rounds, the mask M is chosen to maximise the decrease of the
    loss per cost of a round,

        Gamma(M) = sum_{j in M} g_j^2 / (c + sum_{j in M} t_j),

    with g_j^2 the mean of the clients' squared gradients of weight j. t_j = F_j / mean(F) + 1 is
    the cost of computing with it and sending it, F_j its FLOPs in a forward pass; c = ``base_cost``
    * sum_j t_j is the cost of a round that does not depend on pruning. Weights of M stay, except
    for the share ``prunable`` of smallest magnitude in each tensor. Those, and all pruned weights,
    reenter in the order of g_j^2 / t_j, as long as this exceeds Gamma of the weights chosen so far
    and M holds at most the share ``capacity`` of all weights. Weights that leave M become zero: the
    global model is the pruned one. Weights that enter begin at zero (``reentry`` = "zero"), or at
    the value with which they left, which the server keeps, as in PruneFL ("kept"). Parameters of
    one dimension (norms, biases) are always held: they count among the weights that a client holds
    and in the sum of g_j^2, and cost nothing beyond c.

    Differences from the paper's code: costs are FLOPs and counts, not seconds measured on a device;
    gradients are taken at the global model over all examples of the round's clients, not
    accumulated during training; the first mask is chosen once, by all clients of round 0, beginning
    with the share ``capacity`` of largest magnitude in each tensor, instead of by one client that
    trains and adapts until the size settles; ``prunable`` does not decay (there, by half in 10,000
    rounds); the capacity is a bound from the first round on. At capacity 1 nothing is pruned; a
    capacity just below leaves the size to Gamma.
    """

    every: int = 5
    prunable: float = 0.3
    base_cost: float = 0.5
    reentry: Reentry = "zero"
    looks_at_model = True

    class Options(Section):
        """The keys of ``pruned``."""

        every: Count = Field(5, description="rounds between adaptations")
        prunable: Annotated[float, Field(ge=0, le=1)] = Field(
            0.3, description="the share of a tensor's weights that may leave in an adaptation"
        )
        base_cost: Positive = Field(
            0.5,
            description="cost of a round that does not depend on pruning, in costs of the whole "
            "model (by the times in PruneFL's code: 0.14 and 0.71)",
        )
        reentry: Reentry = Field(
            "zero",
            description="value of a weight that reenters: zero, or (PruneFL's code) its value when "
            "it left",
        )

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Return the mask of all clients.

        >>> Pruned().select("coordinates", 3, 1.0, Draw(0, 0, 0))
        array([ True,  True,  True])
        """
        if capacity == 1:
            return np.ones(size, dtype=np.bool_)
        if "mask" not in draw.knowledge.memory:
            raise LookupError("the mask of 'pruned' is in the state of a run, not known here")
        return draw.knowledge.memory["mask"].numpy().astype(np.bool_)

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        """Return a full mask, one byte per weight, and zeros as the values of weights that left."""
        mask = torch.ones(sum(p.numel() for p in parameters.values()), dtype=torch.uint8)
        if self.reentry == "zero":
            return {"mask": mask}
        return {"mask": mask, "kept": _flat([torch.zeros_like(p) for p in parameters.values()])}

    def adapts(self, round_: int) -> bool:
        """Return whether the round adapts: every ``every`` rounds, from the first on.

        >>> [Pruned(every=2).adapts(r) for r in range(4)]
        [True, False, True, False]
        """
        return round_ % self.every == 0

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        """Choose the mask, and apply it to the model."""
        (capacity,) = set(now.capacities)
        if capacity == 1:
            return now.tensors, now.memory
        names = now.parameters
        masks = _by_name(now.memory["mask"].bool(), names, now.tensors)
        squares, flops = now.squared_gradients(masks), now.flops()
        fixed_names = [name for name in names if now.tensors[name].dim() < 2]
        prunable_names = [name for name in names if name not in fixed_names]
        most = _most(capacity, (now.tensors[n].shape for n in names))
        counts = {n: int(masks[n].sum()) for n in prunable_names}
        if now.round == 0:
            counts = {n: count * most // sum(counts.values()) for n, count in counts.items()}
        stays = [
            largest_in_mask(now.tensors[n], masks[n], count - int(self.prunable * count))
            for n, count in counts.items()
        ]
        computing = np.concatenate(
            [np.full(now.tensors[n].numel(), flops[n]) for n in prunable_names]
        )
        cost = computing / computing.mean() + 1
        flat_mask = choose_weights(
            np.concatenate(stays),
            np.concatenate([squares[n].double().numpy().reshape(-1) for n in prunable_names]),
            cost,
            base_value=sum(float(squares[n].double().sum()) for n in fixed_names),
            base_cost=self.base_cost * float(cost.sum()),
            most=most,
        )
        ends = np.cumsum([now.tensors[n].numel() for n in prunable_names])[:-1]
        chosen_masks = masks | {
            n: torch.from_numpy(part).view(now.tensors[n].shape)
            for n, part in zip(prunable_names, np.split(flat_mask, ends), strict=True)
        }
        return self._follow(now, masks, chosen_masks)

    def _follow(
        self, now: Adaptation, before: Mapping[str, Tensor], after: Mapping[str, Tensor]
    ) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        """Return the model under the new mask, and the memory, with kept values if asked for."""
        names, values = now.parameters, dict(now.tensors)
        memory = {"mask": _flat([after[n] for n in names]).to(torch.uint8)}
        if self.reentry == "kept":
            kept_values = _by_name(now.memory["kept"], names, now.tensors)
            values |= {
                n: torch.where(before[n], values[n], kept_values[n].to(values[n])) for n in names
            }
            memory["kept"] = _flat(
                [torch.where(after[n], torch.zeros_like(values[n]), values[n]) for n in names]
            )
        tensors = {
            n: torch.where(after[n], t, torch.zeros_like(t)) if n in after else t
            for n, t in values.items()
        }
        return tensors, memory

    def problems(self, run: RunFacts) -> list[str]:
        """Return problems: units, several capacities, or nothing to prune."""
        problems = []
        if run.granularity == "unit":
            problems.append(
                "scheme.granularity: 'unit' is not defined for 'pruned', which prunes single "
                "weights; use 'coordinate'"
            )
        if len(set(run.capacities)) > 1:
            several = ", ".join(f"{c:g}" for c in run.capacities)
            problems.append(
                f"clients.capacities: {several}: 'pruned' has one mask for all clients; give one"
            )
        shapes, smallest = run.shapes.values(), min(run.capacities)
        if shapes and smallest < 1 and _most(smallest, shapes) < 1:
            total = sum(map(math.prod, shapes))
            problems.append(
                f"clients.capacities: {smallest:g} holds {units_held(smallest, total)} of {total} "
                "weights, at most as many as are in norms and biases, which are never pruned"
            )
        return problems


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def _by_name(
    flat: Tensor, names: Sequence[str], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the named tensors, in their shapes, from a flat vector."""
    parts = torch.split(flat, [tensors[name].numel() for name in names])
    return {n: part.view(tensors[n].shape) for n, part in zip(names, parts, strict=True)}


def _most(capacity: float, shapes: Iterable[Sequence[int]]) -> int:
    """Return the number of weights in two or more dimensions that a client may hold."""
    sizes = [(len(shape), math.prod(shape)) for shape in shapes]
    capacity_count = units_held(capacity, sum(size for _, size in sizes))
    return capacity_count - sum(size for dimensions, size in sizes if dimensions < 2)


def largest_in_mask(tensor: Tensor, mask: Tensor, count: int) -> Mask:
    """Return the ``count`` weights of largest magnitude in the mask, as a flat mask.

    >>> largest_in_mask(torch.tensor([3.0, -1.0, 2.0, 9.0]), torch.tensor([1, 1, 1, 0]) > 0, 2)
    array([ True, False,  True, False])
    """
    places = np.flatnonzero(mask.numpy().reshape(-1))
    sizes = tensor.detach().double().abs().numpy().reshape(-1)
    order = np.argsort(-sizes[places], kind="stable")
    result = np.zeros(len(sizes), dtype=np.bool_)
    result[places[order[:count]]] = True
    return result


def choose_weights(
    stays: Mask, value: Floats, cost: Floats, base_value: float, base_cost: float, most: int
) -> Mask:
    """Choose the weights that stay, and others by value / cost while they raise the ratio.

    The ratio is (base_value + the chosen values) / (base_cost + the chosen costs). At most ``most``
    weights are chosen in total.

    >>> value, cost = np.array([4.0, 9.0, 1.0, 6.0]), np.array([1.0, 2.0, 1.0, 1.0])
    >>> choose_weights(np.array([True, False, False, False]), value, cost, 0.0, 1.0, most=4)
    array([ True,  True, False,  True])
    """
    others = np.flatnonzero(~stays)
    ratio = value[others] / cost[others]
    best = np.argsort(-ratio, kind="stable")
    others, ratio = others[best], ratio[best]
    values, costs = (  # totals before each weight
        np.cumsum(np.concatenate([[base + of[stays].sum()], of[others]]))[:-1]
        for base, of in ((base_value, value), (base_cost, cost))
    )
    worse = ratio * costs <= values
    count = int(np.argmax(worse)) if worse.any() else len(others)
    mask = stays.copy()
    mask[others[: max(0, min(count, most - int(stays.sum())))]] = True
    return mask
