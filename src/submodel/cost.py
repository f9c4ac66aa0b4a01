"""What a cut costs: parameters, bytes on the wire, floating-point operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from submodel.build import build, tensors_of
from submodel.cut import WHOLE, Cut

BACKWARD = 3
"""Training an example costs about three forward passes: one forward, two for the gradients."""


@dataclass(frozen=True)
class Cost:
    """The cost of one sub-model."""

    parameters: int
    bytes: int  # one way
    forward_flops: int  # per example


class CostModel:
    """Counts what cuts of one model cost, without touching its weights."""

    def __init__(self, module: nn.Module, inputs: Sequence[int]) -> None:
        self._skeleton = build(module, WHOLE).to("meta")
        self._tensors = tensors_of(self._skeleton)
        self._dtype = next(self._skeleton.parameters()).dtype
        self._inputs = tuple(inputs)
        self._flops: dict[tuple[tuple[str, int], ...], int] = {}

    def of(self, cut: Cut) -> Cost:
        """The cost of ``cut``.

        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> CostModel(net, (4,)).of(WHOLE)
        Cost(parameters=58, bytes=232, forward_flops=96)
        """
        counts = {n: cut.held(n, t.shape) for n, t in self._tensors.items()}
        parameters = sum(counts[name] for name, _ in self._skeleton.named_parameters())
        size = sum(count * self._tensors[name].element_size() for name, count in counts.items())
        return Cost(parameters, size, self.forward_flops(cut))

    def forward_flops(self, cut: Cut) -> int:
        """Multiply-adds, two operations each, of one example; a masked weight still costs."""
        if cut.shape_key not in self._flops:
            small = build(self._skeleton, cut).train()
            with torch.no_grad(), FlopCounterMode(display=False) as counter:
                small(torch.empty(1, *self._inputs, dtype=self._dtype, device="meta"))
            self._flops[cut.shape_key] = counter.get_total_flops()
        return self._flops[cut.shape_key]
