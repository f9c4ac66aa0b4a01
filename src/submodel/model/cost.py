"""What a cut costs: parameters, bytes on the wire, floating-point operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from submodel.errors import SubmodelError
from submodel.model.axes import Axes
from submodel.model.axes.forward import isolate, run, tensors_in
from submodel.model.axes.keep import DispatchMode
from submodel.model.build import build_module, skeleton, tensors_of, to_device
from submodel.model.cut import WHOLE, Cut, UnitCut
from submodel.model.flop_formula import FlopFormula, find_formula
from submodel.model.inputs import Inputs
from submodel.model.meta import shortcut
from submodel.model.travel import Travel, untrained_names

_SHAPES = 6  # that are counted one by one; where there are more, a formula pays
BACKWARD = 3
"""Training an example costs about three forward passes: one forward, two for the gradients."""


@dataclass(frozen=True)
class Cost:
    """The cost of one sub-model."""

    parameters: int
    bytes: int  # that the client holds
    trained_bytes: int  # of these, the ones that it changes and sends back
    traffic: int  # bytes per round, down and up; a base that is sent once is not in it
    forward_flops: int  # per example


def on_meta(inputs: Any) -> Any:
    """Example inputs without values: enough to count with."""
    if isinstance(inputs, Tensor):
        return inputs.to("meta")
    if isinstance(inputs, Mapping):
        return {key: on_meta(value) for key, value in inputs.items()}
    if isinstance(inputs, tuple):
        return tuple(on_meta(value) for value in inputs)
    return inputs


class CostModel:
    """Counts what cuts of one model cost, without touching its weights.

    Counting needs shapes alone, so the meta device does. A forward that looks at values (some make
    their masks so) runs for real instead.
    """

    def __init__(
        self, module: nn.Module, example_inputs: Inputs, travel: Travel | None = None
    ) -> None:
        """``travel``: which tensors go both ways; None: those that are trained, the others down."""
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
        """The sub-model of ``cut``, to be run on the inputs; its values do not count."""
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
        """What one weight of each parameter costs in a forward pass of one example.

        The operations that a layer does itself, not by layers inside it, are shared evenly by its
        parameters of two or more dimensions. What does none that are counted (a norm, a bias, an
        embedding) is given the least that occurs.

        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> CostModel(net, torch.empty(1, 4)).flops_per_weight()["0.weight"]
        2.0
        """
        small = self.build(WHOLE)
        counts = _flops_by_layer(small, self.inputs)
        own_flops = dict(counts)
        for layer, count in counts.items():
            if layer:
                own_flops[_around(layer, counts)] -= count
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
        """Multiply-adds, two operations each, of one example; a masked weight still costs."""
        key = cut.shape_key
        if key not in self._flops:
            flops = None
            if isinstance(cut, UnitCut) and (formula := self._formula_of(cut.axes)) is not None:
                flops = formula(dict(key))
            if flops is None:
                flops = _flops_of(self.build(cut), self.inputs)
            self._flops[key] = flops
        return self._flops[key] // self.examples

    def _formula_of(self, axes: Axes) -> FlopFormula | None:
        """Once cuts have had several shapes: the formula that agrees with all of them."""
        if self._formula_axes is None and len(self._flops) > _SHAPES:
            self._formula_axes = axes
            try:
                formula = find_formula(axes, self._operations)
            except (SubmodelError, ValueError, RuntimeError):  # a net may not have just any sizes
                formula = None
            if formula is not None and all(formula(dict(k)) == n for k, n in self._flops.items()):
                self._formula = formula
        return self._formula if self._formula_axes is axes else None

    def _operations(self, cut: Cut) -> list[int]:
        """Those of every operator of a sub-model that is counted."""
        small = self.build(cut)
        counter = _Flops()
        with isolate(small, ours=True), counter:
            run(small, self.inputs)
        return counter.operations


def _flops_of(small: nn.Module, inputs: Inputs) -> int:
    """What a forward of a module of ours costs."""
    with isolate(small, ours=True):
        counter = _Flops()
        with counter:
            run(small, inputs)
        if not counter.has_nested:
            return counter.total
        with FlopCounterMode(display=False) as complete:
            run(small, inputs)
        total: int = complete.get_total_flops()
        return total


def _flops_by_layer(small: nn.Module, inputs: Inputs) -> dict[str, int]:
    """What each layer of a module of ours does in a forward, with all that lie in it."""
    with isolate(small, ours=True):
        counter = _Flops()
        for name, layer in small.named_modules():
            layer.register_forward_pre_hook(partial(counter.enter, name), prepend=True)
            layer.register_forward_hook(counter.leave, always_call=True)
        with counter:
            run(small, inputs)
        if not counter.has_nested:
            return dict(counter.by_layer)
        with FlopCounterMode(display=False) as complete:
            run(small, inputs)
        return {
            name.partition(".")[2]: sum(by_operator.values())
            for name, by_operator in complete.get_flop_counts().items()
        }


def call_order(small: nn.Module, inputs: Inputs) -> list[str]:
    """The layers of a module of ours in the order in which a forward calls them, the model first.

    Args:
        small: the module; on the meta device, values are not needed.
        inputs: an example of what it takes, on its device.

    >>> import torch
    >>> call_order(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.empty(1, 4))
    ['', '0', '1']
    """
    names: list[str] = []
    for name, layer in small.named_modules():
        layer.register_forward_pre_hook(partial(_note, names, name))
    with isolate(small, ours=True), _Flops():  # which knows short cuts on the meta device
        run(small, inputs)
    return names


def _note(names: list[str], name: str, *_: object) -> None:
    names.append(name)


class _Flops(DispatchMode):
    """The total of `FlopCounterMode`, which loads PyTorch's compiler first: a second.

    Operators with operators inside are left to that one, and noted (``has_nested``).
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total, self.has_nested = 0, False
        self.operations: list[int] = []
        self.by_layer = Counter[str]()
        self._running: list[str] = []

    def enter(self, layer: str, *_: object) -> None:
        """A layer begins."""
        self._running.append(layer)

    def leave(self, *_: object) -> None:
        """The last that began ends."""
        self._running.pop()

    def __torch_dispatch__(
        self,
        func: OpOverload | HigherOrderOperator,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
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
            self.total += flops
            self.operations.append(flops)
            self.by_layer.update(dict.fromkeys(self._running, flops))
        return result


def _around(layer: str, layers: Container[str]) -> str:
    """The nearest layer of ``layers`` that ``layer`` lies in.

    >>> _around("blocks.0.conv", {"", "blocks.0"}), _around("blocks.0", {"", "head"})
    ('blocks.0', '')
    """
    outer = layer.rpartition(".")[0]
    return outer if not outer or outer in layers else _around(outer, layers)
