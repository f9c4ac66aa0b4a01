"""The largest capacity that fits a device's budget, with the arithmetic shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from submodel.core.amounts import si
from submodel.core.randomness import seeded
from submodel.model.axes import Axes
from submodel.model.axes.forward import run
from submodel.model.cost import BACKWARD, CostModel
from submodel.model.cut import UnitCut, prefix_cut
from submodel.model.inputs import Inputs
from submodel.model.meta import Shapes
from submodel.model.travel import travel_of


@dataclass(frozen=True)
class Needs:
    """The resources that a device needs to train one sub-model."""

    parameters: int  # bytes
    gradients: int
    optimizer: int
    activations: int  # bytes that the backward pass keeps, at the batch size
    flops: int  # per step
    traffic: int  # bytes per round, down and up

    @property
    def memory(self) -> int:
        """Total bytes."""
        return self.parameters + self.gradients + self.optimizer + self.activations

    def arithmetic(self) -> str:
        """The memory, term by term.

        >>> Needs(4000, 4000, 0, 8000, flops=10**6, traffic=8000).arithmetic()
        '4 kB parameters + 4 kB gradients + 8 kB activations = 16 kB'
        """
        terms = {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimiser": self.optimizer,
            "activations": self.activations,
        }
        summands = [f"{si(count, 'B')} {what}" for what, count in terms.items() if count]
        return f"{' + '.join(summands)} = {si(self.memory, 'B')}"


@dataclass(frozen=True)
class Fit:
    """The largest capacity that fits, its needs, and those of the next larger capacity."""

    capacity: float | None  # None: not even one unit of every axis fits
    needs: Needs | None
    too_large: Needs | None  # None: the whole model fits


class Budget:
    """Computes the needs of sub-models of one model without reading its weights."""

    def __init__(
        self,
        module: nn.Module,
        axes: Axes,
        example_inputs: Inputs,
        batch_size: int,
        copies: int = 1,
        least: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._costs = CostModel(module, example_inputs, travel_of(module, axes))
        self._axes = axes
        self._batch = batch_size
        self._copies = copies  # of the parameters, kept by the optimiser
        self._least = least
        self._inputs = _of_batch(self._costs.inputs, batch_size)

    def cut(self, capacity: float) -> UnitCut:
        """A cut of the nominal size of a capacity."""
        return prefix_cut(self._axes, capacity, least=self._least)

    def needs(self, capacity: float) -> Needs:
        """The needs of a capacity."""
        cut = self.cut(capacity)
        cost = self._costs.of(cut)
        return Needs(
            parameters=cost.bytes,
            gradients=cost.trained_bytes,
            optimizer=cost.trained_bytes * self._copies,
            activations=activation_bytes(self._costs.build(cut), self._inputs),
            flops=BACKWARD * cost.forward_flops * self._batch,
            traffic=cost.traffic,
        )

    def largest(self, fits: Callable[[Needs], bool]) -> Fit:
        """The largest capacity whose needs pass ``fits``; all needs grow with the capacity.

        Capacities are tried in steps of one unit of the largest axis.
        """
        steps = max(self._axes.cut_by_capacity.values(), default=1)
        low, high = 0, steps + 1  # low fits (or is 0), high does not (or exceeds the whole model)
        while high - low > 1:
            middle = (low + high) // 2
            if fits(self.needs(middle / steps)):
                low = middle
            else:
                high = middle
        return Fit(
            low / steps if low else None,
            self.needs(low / steps) if low else None,
            self.needs(high / steps) if high <= steps else None,
        )


def _of_batch(inputs: Inputs, batch_size: int) -> Inputs:
    """Example inputs with the first dimension of every tensor repeated to the batch size."""

    def resize(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.is_meta:  # `repeat` would import PyTorch's compiler
            return value.new_empty((batch_size, *value.shape[1:]))
        times = -(-batch_size // len(value))
        return value.repeat(times, *(1 for _ in value.shape[1:]))[:batch_size]

    if isinstance(inputs, Mapping):
        return {key: resize(value) for key, value in inputs.items()}
    return tuple(map(resize, inputs)) if isinstance(inputs, tuple) else resize(inputs)


def activation_bytes(module: nn.Module, inputs: Inputs) -> int:
    """The bytes that a forward pass keeps for the backward pass, without the parameters.

    >>> activation_bytes(nn.Linear(4, 8, device="meta"), torch.empty(10, 4, device="meta"))
    160
    """
    parameter_storages = {p.untyped_storage()._cdata for p in module.parameters()}
    bytes_by_storage: dict[int, int] = {}
    storages = []  # keeps the storages alive, so that no address is reused

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in parameter_storages:
            bytes_by_storage[storage._cdata] = storage.nbytes()
            storages.append(storage)
        return tensor

    module.train()
    with (
        seeded(None),
        Shapes(),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        result = run(module, inputs)
    total = sum(bytes_by_storage.values())
    del result
    return total
