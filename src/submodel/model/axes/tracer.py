"""Finding the axes of any module: one ordinary forward, watched operator by operator.

Every dimension of every parameter and buffer starts as an axis of its own. Each operator that runs
tells which of them are the same, which are products or concatenations of others, and which must
keep their order (see `rules`). Inputs and outputs are fixed. What no rule describes freezes what it
touches: too little is cut rather than something wrong.

Only what runs is seen: give a net with branches inputs that take the branch you train. A loop over
the steps of a short input is also watched on a longer one (see `longer`), and a module that keeps a
state is called twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from submodel.errors import ConfigError
from submodel.model.axes.advice import Reason, is_natural
from submodel.model.axes.assemble import Overrides, assemble
from submodel.model.axes.declare import Axes
from submodel.model.axes.expression import Atom, Expression, Fixed, units
from submodel.model.axes.forward import Inputs, outputs_of, run, tensors_in, undisturbed, weights_of
from submodel.model.axes.keep import DispatchMode
from submodel.model.axes.kinds import refuse_kinds
from submodel.model.axes.longer import longer_inputs
from submodel.model.axes.memory import Memory
from submodel.model.axes.reach import alias_problem, aliases
from submodel.model.axes.record import Record
from submodel.model.axes.rules import Call, Rule, find
from submodel.model.axes.siblings import Calls, passed_by, watch_calls
from submodel.model.axes.source import source_line
from submodel.model.axes.stored import Watched, watch_numbers
from submodel.model.axes.torch_layers import alike_in_layers
from submodel.model.axes.trial import Example
from submodel.model.axes.verify import verify_on


def trace(
    module: nn.Module,
    example_inputs: Inputs,
    *,
    outputs: Callable[[Any], Any] | None = None,
    classes: bool = False,
    freeze: Sequence[str] = (),
    tie: Sequence[tuple[str, str]] = (),
    whole: Sequence[str] = (),
    cut: Sequence[str] = (),
    verify: bool = True,
    capacities: Sequence[float] = (0.5, 0.25),
) -> Axes:
    """The axes of ``module``, found by watching one forward on ``example_inputs``.

    Numbers in the code count too: dimensions that one stored number makes stay equal, and what a
    number written in the code makes (``view(-1, 4, 6)``) is kept whole.

    Where a dimension is a product of free axes (heads x size of a head, groups x channels of a
    group), cutting both would square the fraction, so one factor is cut: the groups of a group
    norm, because cutting whole groups is exact, and otherwise the innermost factor.

    Args:
        module: the model; it is left as it was.
        example_inputs: one tensor, a tuple of positional or a dictionary of named arguments.
        outputs: selects from what the forward returns the tensors whose dimensions must stay; by
            default all of them.
        classes: make the last dimension of the one output the axis `CLASSES`, which a capacity
            never cuts.
        freeze: axes or dimensions (``"fc.weight[1]"``) to fix.
        tie: pairs of axes to cut alike.
        whole: axes to keep whole.
        cut: factors of products to cut instead of those above.
        verify: permute all axes found and require the same outputs (see `verify`), and measure
            whether a sub-model is the masked model (see `measure`); tensors on the meta device
            have no values to verify.
        capacities: those at which that is measured.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> trace(net, torch.ones(1, 4)).sizes
    {'0': 8}
    """
    if problems := list(_kinds(module, example_inputs, outputs)):
        raise ConfigError(problems)
    overrides = Overrides(freeze, tie, whole, cut)
    refuse_kinds(module)
    record, watched = Record(), Watched()
    weights = weights_of(module)
    for tensor in weights.values():
        record.add_weight(tensor)
    runs = _watch_forward(module, example_inputs, outputs, record, watched)
    examples = [example_inputs, *longer_inputs(module, example_inputs, record.steps, outputs)]
    for longer in examples[1:]:
        runs += _watch_forward(module, longer, outputs, record, watched)
    _refuse_aliases(module, record)
    _equal_sizes(record, watched, module)
    for dimension in watched.scales():
        record.mix(dimension, "the code computes a value from its size")
    of_classes = _freeze_outputs(record, runs, classes)
    axes = assemble(record, weights, of_classes, overrides, watched)
    if verify and not any(t.is_meta for t in (*weights.values(), *runs[0])):
        if not any(t.numel() for t in runs[0]):
            raise ConfigError(["example_inputs: no output has a value on them; give an example"])
        from submodel.model.axes.measure import measure  # which needs axes itself

        tried = [Example(module, example, outputs) for example in examples]
        for example in tried:
            verify_on(example, axes)
        axes = measure(tried, axes, capacities)
    return axes


def _located(reason: str) -> str:
    """A reason to freeze with the line of the model's code that is running."""
    if isinstance(reason, Reason) or is_natural(reason):
        return reason
    return Reason(reason, source_line())


def _watch_forward(
    module: nn.Module,
    inputs: Inputs,
    outputs: Callable[[Any], Any] | None,
    record: Record,
    watched: Watched,
) -> list[list[Tensor]]:
    """The outputs of a forward, and of a second one if the first left a state that it may read."""
    for tensor in tensors_in(inputs, strict=False):
        if id(tensor) not in record.tensors:
            record.add_fixed(tensor, "it meets an input")
    with undisturbed(module):
        memory = Memory(module)
        with (
            Watch(record),
            watch_numbers(module, record.seen, watched),
            watch_calls(module) as calls,
        ):  # what ``outputs`` computes is watched as well
            record.algebra.located = _located
            runs = [outputs_of(run(module, inputs), outputs)]
            _refuse_late(module, record)
            _run_passed_by(record, module, calls)
            if any(record.seen(tensor) is not None for tensor in memory.written()):
                runs.append(outputs_of(run(module, inputs), outputs))
    record.algebra.located = str
    return runs


def _run_passed_by(record: Record, module: nn.Module, calls: Calls) -> None:
    """Run what a list of modules holds and the forward passed by; its outputs are its sibling's."""

    def is_read(layer: nn.Module) -> bool:
        return any(id(tensor) in record.read for tensor in layer.parameters())

    for layer, call in list(passed_by(module, calls, is_read)):
        try:
            result = layer(*call.args, **call.kwargs)
        except Exception:  # it cannot stand in for its sibling after all
            for tensor in layer.parameters():
                for dimension in record.of(tensor).dimensions:
                    record.algebra.freeze(dimension, "the forward passes it by")
            continue
        pairs = zip(
            tensors_in(result, strict=False), tensors_in(call.result, strict=False), strict=False
        )
        for one, other in pairs:
            for d, e in zip(record.of(one).dimensions, record.of(other).dimensions, strict=True):
                record.algebra.unify(d, e, "another module of its list makes it")


def _kinds(module: object, example_inputs: object, outputs: object) -> Iterator[str]:
    """What is not of the kind that a trace needs."""
    if not isinstance(module, nn.Module):
        yield f"module: a {type(module).__name__} is not an nn.Module"
    if not isinstance(example_inputs, Tensor | tuple | Mapping):
        yield (
            f"example_inputs: a {type(example_inputs).__name__} is neither a tensor nor a tuple of "
            "arguments nor a dictionary of named ones"
        )
    elif next(tensors_in(example_inputs, strict=False), None) is None:
        yield "example_inputs: there is no tensor in them; for a shape, give torch.ones(shape)"
    if outputs is not None and not callable(outputs):
        yield f"outputs: {outputs!r} is not a function of what the forward returns"


def _refuse_late(module: nn.Module, record: Record) -> None:
    """A parameter that the forward itself makes is gone with what else it wrote down."""
    late = [name for name, p in module.named_parameters() if id(p) not in record.weights]
    if late:
        raise ConfigError(
            [f"{name}: made by the forward; run the module once before" for name in late]
        )


def _refuse_aliases(module: nn.Module, record: Record) -> None:
    """A second tensor in the memory of a weight is cut or trained by nobody."""
    read = [names for one, names in aliases(module).items() if one in record.read]
    if read:
        raise ConfigError([alias_problem(path, weight) for path, weight in read])


def _equal_sizes(record: Record, watched: Watched, module: nn.Module) -> None:
    """Dimensions that one number counts stay equal in size: they become one."""
    reason = "one number counts it and another dimension"
    alike = list(watched.alike())
    for parts in alike_in_layers(module):
        found: list[Expression] = []
        for part in parts:
            known = record.seen(part.tensor)
            if known is not None:
                size = known[part.dimension].size // part.parts
                found += record.algebra.pieces(known[part.dimension], [size] * part.parts, reason)
        alike.append(found)
    resolve = record.algebra.resolve
    for same in alike:
        for other in same[1:]:
            if same[0].size != other.size:  # the number changed on the way
                record.algebra.freeze(same[0], reason)
                record.algebra.freeze(other, reason)
            elif units(resolve(same[0])) != units(resolve(other)):
                record.algebra.unify(same[0], other, reason)
    for made, counted in watched.multiples():
        _factor(record, made, counted)


def _factor(record: Record, made: Expression, counted: Sequence[Expression]) -> None:
    """A dimension that a product makes, such as `2 * self.size`: its factors are what it counts.

    Only where it is one axis so far, and would be cut without regard to its factors.
    """
    resolve = record.algebra.resolve
    if not isinstance(resolve(made), Atom):
        return
    inner = [d for d in counted if not isinstance(resolve(d), Fixed)]
    size = math.prod(d.size for d in inner)
    if inner and size < made.size and made.size % size == 0:
        reason = "a multiple of the size of another dimension"
        sizes = [made.size // size, *(d.size for d in inner)]
        factors = record.algebra.factor(made, sizes, reason)
        for factor, dimension in zip(factors[1:], inner, strict=True):
            record.algebra.unify(factor, dimension, reason)


def _freeze_outputs(record: Record, runs: Sequence[Sequence[Tensor]], classes: bool) -> Atom | None:
    """Fix the outputs of all runs; with ``classes``, not the last dimension of the one output."""
    if classes and (len(runs[0]) != 1 or runs[0][0].dim() == 0):
        raise ConfigError(
            [f"classes: needs one output tensor with a last dimension, there are {len(runs[0])}"]
        )
    last: Expression | None = None
    for result in (result for results in runs for result in results):
        own = list(record.of(result).dimensions)
        if classes and own:
            along = own.pop()
            if last is None:
                last = along
            elif along.size == last.size:
                record.algebra.unify(last, along, "it meets an output")
        for dimension in own:
            record.algebra.freeze(dimension, "it meets an output")
    if last is None:
        return None
    found = record.algebra.resolve(last)
    if not isinstance(found, Atom):
        why = found.reason if isinstance(found, Fixed) else "it is made of several axes"
        raise ConfigError([f"classes: the last dimension of the output is no axis: {why}"])
    return found


@cache
def _rule(operator: torch._ops.OpOverload) -> Rule | None:
    return find(operator)


@cache
def _parameters(operator: torch._ops.OpOverload) -> tuple[tuple[str, Any], ...]:
    """The arguments of an operator with their defaults."""
    return tuple((a.name, a.default_value) for a in operator._schema.arguments)


class Watch(DispatchMode):
    """Applies the rule of every operator that runs."""

    def __init__(self, record: Record) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        rule = _rule(func)
        if rule is None:
            result = self._decomposed(func, args, given)
            if result is not NotImplemented:
                return result
        arguments = {
            name: args[i] if i < len(args) else given.get(name, default)
            for i, (name, default) in enumerate(_parameters(func))
        }
        result = func(*args, **given)
        made = [result] if isinstance(result, Tensor) else _flat(result)
        self._apply(rule, Call(self.record, func._schema.name.split("::")[-1], arguments, made))
        return result

    def _decomposed(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What an operator without a rule computes, by operators that may have one."""
        if func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
            return NotImplemented
        with self:
            result = func.decompose(*args, **kwargs)
            if result is not NotImplemented or not any(isinstance(a, Tensor) for a in args):
                return result
            decomposition = _decompositions().get(func)
            return NotImplemented if decomposition is None else decomposition(*args, **kwargs)

    def _add_untold(self, call: Call, results: Sequence[Tensor]) -> None:
        """Results that a rule leaves out: whoever reads them depends on who knows what."""
        reason = f"read through a result of {call.name} that its rule does not describe"
        for tensor in results:
            fixed = [Fixed(n, f"made by {call.name}") for n in tensor.shape]
            self.record.add(tensor, fixed, pending=[(d, reason) for d in _dimensions(call)])

    def _apply(self, rule: Rule | None, call: Call) -> None:
        reason = f"read by {call.name}, which has no rule"
        if rule is not None:
            try:
                found = rule.apply(call)
                weight = bool(call.results) and rule.keeps_zeros(call)
                constant = rule.is_constant(call)
                for tensor, dimensions in zip(call.results, found, strict=False):
                    self.record.add(tensor, dimensions, weight, constant, call.pending)
                self._add_untold(call, call.results[len(found) :])
                return
            except (ValueError, IndexError, KeyError) as problem:
                reason = f"read by {call.name} in a way that its rule does not cover: {problem}"
        for dimension in _dimensions(call):
            self.record.algebra.freeze(dimension, reason)
        for tensor in call.results:
            self.record.add_fixed(tensor, f"made by {call.name}")


def _dimensions(call: Call) -> Iterator[Expression]:
    """The dimensions of everything that an operator reads."""
    for tensor in call.tensors():
        yield from call.record.of(tensor).dimensions


def _flat(result: Any) -> list[Tensor]:
    """The tensors that an operator returned, in order."""
    if isinstance(result, Tensor):
        return [result]
    return [t for r in result for t in _flat(r)] if isinstance(result, list | tuple) else []


@cache
def _decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Torch's own table; imported late, as it is large and few models need it."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())
