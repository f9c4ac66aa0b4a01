"""The cost of a cut: parameters, traffic, floating-point operations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from submodel.core.errors import SubmodelError
from submodel.model.axes import Axes
from submodel.model.axes.forward import isolate, run, tensors_in
from submodel.model.axes.keep import DispatchMode
from submodel.model.build import build_module, skeleton, tensors_of, to_device
from submodel.model.cut import WHOLE, Cut, UnitCut
from submodel.model.inputs import Inputs, map_leaves
from submodel.model.meta import shortcut
from submodel.model.travel import Travel, untrained_names

_LARGEST_PRIME = 1 << 12
Powers = tuple[tuple[str, int], ...]
"""The axes in a product, each with its exponent."""
_SHAPES = 6  # number of shapes counted one by one; for more, a formula is faster
BACKWARD = 3
"""Training on an example costs about three forward passes: one forward, two for the gradients."""


@dataclass(frozen=True)
class Cost:
    """The cost of one sub-model."""

    parameters: int
    bytes: int  # held by the client
    trained_bytes: int  # the part that the client changes and sends back
    traffic: int  # bytes per round, down and up, without the base, which is sent once
    forward_flops: int  # per example


def on_meta(inputs: Any) -> Any:
    """Example inputs on the meta device; counting needs no values."""
    return map_leaves(lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf, inputs)


class CostModel:
    """Computes the costs of cuts of one model without reading its weights.

    Counting needs only shapes, so the model runs on the meta device. A forward pass that reads
    values (some compute masks this way) runs on the real device instead.
    """

    def __init__(
        self, module: nn.Module, example_inputs: Inputs, travel: Travel | None = None
    ) -> None:
        """``travel``: the exchanged tensors; None: trained ones go both ways, others only down."""
        self._travel = travel or Travel(untrained_names(module))
        self.examples = next(tensors_in(example_inputs)).shape[0]
        self._flops: dict[tuple[tuple[str, int], ...], int] = {}  # of all examples
        self._formula: FlopFormula | None = None
        self._formula_axes: Axes | None = None
        self.module, self.inputs = skeleton(module), on_meta(example_inputs)
        self._tensors = tensors_of(self.module)
        try:
            self.forward_flops(WHOLE)
        except (NotImplementedError, RuntimeError):
            self.module, self.inputs = module, example_inputs

    def build(self, cut: Cut) -> nn.Module:
        """The sub-model of ``cut`` on the device of the inputs; its values are arbitrary."""
        small = build_module(self.module, cut)
        device = next(tensors_in(self.inputs)).device
        return small if device.type == "meta" else to_device(small, device)

    def of(self, cut: Cut) -> Cost:
        """The cost of ``cut``.

        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> CostModel(net, torch.empty(1, 4)).of(WHOLE)
        Cost(parameters=58, bytes=232, trained_bytes=232, traffic=464, forward_flops=96)
        """
        counts = {n: cut.value_count(n, t.shape) for n, t in self._tensors.items()}
        parameters = sum(counts[name] for name, _ in self.module.named_parameters())
        sizes = {name: count * self._tensors[name].element_size() for name, count in counts.items()}
        down = sum(self._travel.of_task(sizes).values())
        up = sum(self._travel.of_update(sizes).values())
        return Cost(parameters, sum(sizes.values()), up, down + up, self.forward_flops(cut))

    def flops_per_weight(self) -> dict[str, float]:
        """Operations per weight of each parameter in a forward pass of one example.

        The operations of a layer itself, without those of inner layers, are divided evenly among
        its parameters of two or more dimensions. Parameters without counted operations (norms,
        biases, embeddings) get the smallest value that occurs.

        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> CostModel(net, torch.empty(1, 4)).flops_per_weight()["0.weight"]
        2.0
        """
        small = self.build(WHOLE)
        counts = count_flops(small, self.inputs).by_layer
        own_flops = dict(counts)
        for layer, count in counts.items():
            if layer:
                outer = layer.rpartition(".")[0]
                while outer and outer not in counts:
                    outer = outer.rpartition(".")[0]
                own_flops[outer] -= count
        large = {name: p for name, p in small.named_parameters() if p.dim() > 1}
        sharing = Counter[str]()
        for name, parameter in large.items():
            sharing[name.rpartition(".")[0]] += parameter.numel()
        flops = {}
        for name in large:
            layer = name.rpartition(".")[0]
            flops[name] = own_flops.get(layer, 0) / sharing[layer] / self.examples
        least = min((f for f in flops.values() if f > 0), default=1.0)
        return {name: flops.get(name) or least for name, _ in small.named_parameters()}

    def forward_flops(self, cut: Cut) -> int:
        """Operations of one example, two per multiply-add; masked weights count too."""
        key = cut.shape_key
        if key not in self._flops:
            flops = None
            if isinstance(cut, UnitCut) and (formula := self._formula_of(cut.axes)) is not None:
                flops = formula(dict(key))
            if flops is None:
                flops = count_flops(self.build(cut), self.inputs).total
            self._flops[key] = flops
        return self._flops[key] // self.examples

    def _formula_of(self, axes: Axes) -> FlopFormula | None:
        """The formula for all shapes; None until several shapes were counted and agree with it."""
        if self._formula_axes is None and len(self._flops) > _SHAPES:
            self._formula_axes = axes
            try:
                formula = FlopFormula.find(
                    axes, lambda cut: count_flops(self.build(cut), self.inputs).operations
                )
            except (SubmodelError, ValueError, RuntimeError):  # not every size is possible
                formula = None
            if formula is not None and all(formula(dict(k)) == n for k, n in self._flops.items()):
                self._formula = formula
        return self._formula if self._formula_axes is axes else None


@dataclass(frozen=True)
class FlopCount:
    """The floating-point operations of a forward pass.

    Args:
        by_layer: operations of each layer including its inner layers; the model is "".
        operations: operations of every counted operator, in the order of execution.
        order: the layers in the order in which the forward pass calls them, the model first.
    """

    by_layer: Mapping[str, int]
    operations: list[int]
    order: list[str]

    @property
    def total(self) -> int:
        """The operations of the whole model."""
        return self.by_layer.get("", 0)


def count_flops(small: nn.Module, inputs: Inputs) -> FlopCount:
    """Count the floating-point operations of a forward pass.

    Args:
        small: a module for this purpose alone, as it gets hooks; the meta device is enough.
        inputs: example inputs on the device of the module.

    >>> import torch
    >>> count_flops(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.empty(1, 4))
    FlopCount(by_layer=Counter({'': 64, '0': 64}), operations=[64], order=['', '0', '1'])
    """
    counter = _Counter()
    for name, layer in small.named_modules():
        layer.register_forward_pre_hook(partial(counter.enter, name), prepend=True)
        layer.register_forward_hook(counter.leave, always_call=True)
    with isolate(small, in_place=True):
        with counter:
            run(small, inputs)
        by_layer: Mapping[str, int] = counter.by_layer
        if counter.has_nested:
            with FlopCounterMode(display=False) as complete:
                run(small, inputs)
            counts = complete.get_flop_counts().items()
            by_layer = {n.partition(".")[2]: sum(of_all.values()) for n, of_all in counts}
    return FlopCount(by_layer, counter.operations, list(dict.fromkeys(counter.order)))


class _Counter(DispatchMode):
    """Counts like `FlopCounterMode`, which first loads PyTorch's compiler for a second.

    Higher-order operators are not counted but noted (``has_nested``), for `FlopCounterMode`.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.has_nested = False
        self.operations: list[int] = []
        self.by_layer = Counter[str]()
        self.order: list[str] = []
        self._running: list[str] = []

    def enter(self, layer: str, *_: object) -> None:
        """Note that a layer begins."""
        self.order.append(layer)
        self._running.append(layer)

    def leave(self, *_: object) -> None:
        """Note that the innermost layer ends."""
        self._running.pop()

    def _see(
        self,
        func: OpOverload | HigherOrderOperator,
        args: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> Any:
        if isinstance(func, HigherOrderOperator):
            self.has_nested = True
            return func(*args, **keywords)
        result = shortcut(func, args, keywords)
        if result is NotImplemented:
            with self:
                parts = func.decompose(*args, **keywords)
            if parts is not NotImplemented:
                return parts
            result = func(*args, **keywords)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            flops = formula(*args, **keywords, out_val=result)
            self.operations.append(flops)
            self.by_layer.update(dict.fromkeys(self._running, flops))
        return result


@dataclass(frozen=True)
class FlopFormula:
    """The operations of any sub-model of a net, for schemes with a different shape per client.

    The operations of an operator are a product of sizes: powers of axis sizes, and sizes that no
    cut changes. One more forward pass finds the powers: it runs a sub-model with a different prime
    number of units along every axis and factorises the counts by these primes. If an operator's
    count is no such product, there is no formula.

    Args:
        sizes: the uncut sizes of the axes.
        terms: the operations of the whole net, by the powers of axes in the product.

    >>> formula = FlopFormula({"hidden": 8}, {(("hidden", 1),): 96, (): 4})
    >>> formula({"hidden": 2}), formula({})
    (28, 100)
    """

    sizes: Mapping[str, int]
    terms: Mapping[Powers, int]

    def __call__(self, kept_sizes: Mapping[str, int]) -> int | None:
        """The operations for these sizes of axes; axes that are not named are whole."""
        total = sum(self._scaled(n, powers, kept_sizes) for powers, n in self.terms.items())
        return int(total) if total.denominator == 1 else None

    def _scaled(self, count: int, powers: Powers, kept_sizes: Mapping[str, int]) -> Fraction:
        cut_powers = [(a, n) for a, n in powers if a in kept_sizes]
        scales = (Fraction(kept_sizes[a], self.sizes[a]) ** n for a, n in cut_powers)
        return math.prod(scales, start=Fraction(count))

    @classmethod
    def find(cls, axes: Axes, count: Callable[[Cut], Sequence[int]]) -> FlopFormula | None:
        """The formula of a net; None if there is none, or too few primes to separate the axes."""
        names = {*axes.cut_by_capacity, *axes.sizes} - axes.kept_whole.keys()
        sizes = {name: axes.sizes[name] for name in sorted(names, key=lambda n: (axes.sizes[n], n))}
        product = math.prod(sizes.values())
        prime_numbers = (
            n
            for n in range(2, _LARGEST_PRIME)
            if product % n and all(n % d for d in range(2, math.isqrt(n) + 1))
        )
        primes = dict(zip(sizes, prime_numbers, strict=False))
        if len(primes) < len(sizes) or any(p > sizes[a] for a, p in primes.items()):
            return None
        whole = count(WHOLE)
        trial = count(UnitCut(axes, {axis: np.arange(prime) for axis, prime in primes.items()}))
        if len(whole) != len(trial):
            return None
        terms = Counter[Powers]()
        formula = cls(sizes, terms)
        for all_operations, operations in zip(whole, trial, strict=True):
            powers = {
                a: _power(operations, p) - _power(all_operations, p) for a, p in primes.items()
            }
            term = tuple((a, n) for a, n in powers.items() if n)
            if formula._scaled(all_operations, term, primes) != operations:
                return None
            terms[term] += all_operations
        return formula


def _power(number: int, prime: int) -> int:
    """The exponent of a prime in a number; 0 for the number 0."""
    power = 0
    while number and number % prime == 0:
        number, power = number // prime, power + 1
    return power
