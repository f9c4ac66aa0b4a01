"""Tracing of operators: each by its rule; without a rule, dimensions are frozen.

A rule is a function of one `Call`, registered by `rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from submodel.model.axes.keep import DispatchMode
from submodel.model.axes.layout import ONE, FixedPart, Layout
from submodel.model.axes.record import Dimensions, Record, TensorFacts, flat_tensors

Results = list[Sequence[Layout]]
"""The dimensions of each result; reading a result that a rule omits freezes the operands."""


@dataclass(frozen=True)
class Call:
    """One call: the operator's arguments by name, its results, and the record of the trace."""

    record: Record
    name: str
    arguments: dict[str, Any]
    results: Sequence[Tensor]
    pending: list[tuple[Layout, str]] = field(default_factory=list)

    def __getitem__(self, argument: str) -> Any:
        return self.arguments[argument]

    def get(self, argument: str, default: Any = None) -> Any:
        """An argument that only some overloads have."""
        return self.arguments.get(argument, default)

    def facts(self, argument: str) -> TensorFacts:
        """The entry of a tensor argument in the record."""
        return self.record.of(self.arguments[argument])

    def dimensions(self, argument: str) -> Dimensions:
        """The dimensions of a tensor argument."""
        return self.facts(argument).dimensions

    def along(self, dim: str = "dim") -> tuple[list[Layout], int]:
        """A list of the dimensions of ``self``, and the index that an argument gives."""
        dimensions = list(self.dimensions("self"))
        return dimensions, self.arguments[dim] % len(dimensions)

    def tensors(self) -> list[Tensor]:
        """All tensor arguments, including those in lists."""
        return flat_tensors(list(self.arguments.values()))

    def unify(self, one: Layout, other: Layout) -> Layout:
        """Make two dimensions equal."""
        return self.record.algebra.unify(one, other, f"read by {self.name}")

    def freeze(self, expression: Layout, words: str = "by position") -> None:
        """Fix a dimension, because the operator depends on the order of its units."""
        self.record.algebra.freeze(expression, f"read by {self.name}, {words}")

    def freeze_if_read(self, expression: Layout, words: str = "by position") -> None:
        """Fix a dimension when a result is read; some results are made for their shape only."""
        self.pending.append((expression, f"read by {self.name}, {words}"))

    def factor(self, expression: Layout, sizes: Sequence[int]) -> list[Layout]:
        """The row-major factors of a dimension."""
        return self.record.algebra.factor(expression, sizes, f"viewed by {self.name}")

    def pieces(self, expression: Layout, sizes: Sequence[int]) -> list[Layout]:
        """The consecutive pieces of a dimension."""
        return self.record.algebra.pieces(expression, sizes, f"split by {self.name}")

    def mix(self, expression: Layout, words: str) -> None:
        """Note that the operator combines the units of a dimension other than by weights."""
        self.record.mix(expression, f"{self.name} {words}")

    def note_steps(self, dim: int) -> None:
        """Note that single positions are taken out of an activation, as a loop over steps does."""
        if not self.facts("self").weight:
            self.record.steps.add(self["self"].shape[dim])

    def broadcast(self, operands: Sequence[Sequence[Layout]]) -> list[Layout]:
        """The common dimensions of operands that broadcast against each other."""
        result: list[Layout] = [ONE] * max(map(len, operands), default=0)
        for operand in operands:
            shift = len(result) - len(operand)
            for d, expression in enumerate(operand):
                if result[shift + d].size == 1:
                    result[shift + d] = expression
                elif expression.size != 1:
                    result[shift + d] = self.unify(result[shift + d], expression)
        return result


@dataclass(frozen=True)
class Rule:
    """A rule; ``moves``: the operator only moves values; ``makes``: it makes constants."""

    apply: Callable[[Call], Results]
    moves: bool = False
    makes: bool = False

    def is_constant(self, call: Call) -> bool:
        """Return whether the results depend on no input and no parameter."""
        operand_facts = [call.record.tensors.get(id(t)) for t in call.tensors()]
        return self.makes or (
            bool(operand_facts) and all(k is not None and k.constant for k in operand_facts)
        )

    def keeps_zeros(self, call: Call) -> bool:
        """Return whether the result is zero wherever its weights are masked; then it is a weight.

        This holds for a view of a weight, and for a multiple, a sum and a product of weights.
        """
        operands, facts = call.tensors(), call.record.tensors
        weights = [t for t in operands if id(t) in facts and facts[id(t)].weight]
        if self.moves or call.name in ("neg", "mm", "bmm"):
            return bool(weights) and len(weights) == len(operands)
        full = [t for t in weights if t.shape == call.results[0].shape]
        if call.name in ("add", "sub"):
            return bool(full) and len(full) == len(operands) == 2
        return bool(full) and (
            call.name == "mul" or (call.name == "div" and full[0] is operands[0])
        )


_RULES: dict[str, Rule] = {}


def rule(
    *names: str, moves: bool = False, makes: bool = False
) -> Callable[[Callable[[Call], Results]], Callable[[Call], Results]]:
    """Register a function as the rule of operators or single overloads (``max.dim``)."""

    def enter(function: Callable[[Call], Results]) -> Callable[[Call], Results]:
        for name in names:
            assert name not in _RULES, name
            _RULES[name] = Rule(function, moves, makes)
        return function

    return enter


def pointwise(call: Call) -> Results:
    """Rule for pointwise operators: every result has the broadcast dimensions of the operands."""
    common = call.broadcast([call.record.of(t).dimensions for t in call.tensors()])
    return [common for _ in call.results]


@cache
def find_rule(operator: torch._ops.OpOverload) -> Rule | None:
    """The rule of an operator: by overload, by name, by the name without "_", or by its tag.

    >>> find_rule(torch.ops.aten.add_.Tensor).apply is pointwise
    True
    >>> find_rule(torch.ops.aten.histc.default) is None
    True
    """
    name, overload = operator._schema.name.removeprefix("aten::"), operator._overloadname
    plain = name[:-1] if name.endswith("_") and not name.startswith("__") else name
    for key in (f"{name}.{overload}", name, f"{plain}.{overload}", plain):
        if key in _RULES:
            return _RULES[key]
    packet: Any = getattr(torch.ops.aten, plain, None)  # of the functional form
    has_overload = packet is not None and overload in packet.overloads()
    tags = {*operator.tags, *(getattr(packet, overload).tags if has_overload else ())}
    return Rule(pointwise) if torch.Tag.pointwise in tags else None


@cache
def _parameters(operator: torch._ops.OpOverload) -> tuple[tuple[str, Any], ...]:
    """The arguments of an operator with their defaults."""
    return tuple((a.name, a.default_value) for a in operator._schema.arguments)


class OperatorWatch(DispatchMode):
    """Dispatch mode that applies the rule of every operator that runs."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record

    def _see(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        rule = find_rule(func)
        if rule is None:
            result = self._decompose(func, args, keywords)
            if result is not NotImplemented:
                return result
        arguments = {
            name: args[i] if i < len(args) else keywords.get(name, default)
            for i, (name, default) in enumerate(_parameters(func))
        }
        result = func(*args, **keywords)
        name = func._schema.name.split("::")[-1]
        self._apply(rule, Call(self.record, name, arguments, flat_tensors(result)))
        return result

    def _decompose(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Compute an operator without a rule by a decomposition into other operators."""
        if func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
            return NotImplemented
        with self:
            result = func.decompose(*args, **kwargs)
            if result is not NotImplemented or not any(isinstance(a, Tensor) for a in args):
                return result
            decomposition = _decompositions().get(func)
            return NotImplemented if decomposition is None else decomposition(*args, **kwargs)

    def _add_undescribed(self, call: Call, results: Sequence[Tensor]) -> None:
        """Record results that a rule omits; reading them freezes all operands."""
        reason = f"read through a result of {call.name} that its rule does not describe"
        for tensor in results:
            fixed_parts = [FixedPart(n, f"made by {call.name}") for n in tensor.shape]
            self.record.add(tensor, fixed_parts, pending=[(d, reason) for d in _dimensions(call)])

    def _apply(self, rule: Rule | None, call: Call) -> None:
        reason = f"read by {call.name}, which has no rule"
        if rule is not None:
            try:
                results = rule.apply(call)
                weight = bool(call.results) and rule.keeps_zeros(call)
                constant = rule.is_constant(call)
                for tensor, dimensions in zip(call.results, results, strict=False):
                    self.record.add(tensor, dimensions, weight, constant, call.pending)
                self._add_undescribed(call, call.results[len(results) :])
                return
            except (ValueError, IndexError, KeyError) as problem:
                reason = f"read by {call.name} in a way that its rule does not cover: {problem}"
        for dimension in _dimensions(call):
            self.record.algebra.freeze(dimension, reason)
        for tensor in call.results:
            self.record.add_fixed(tensor, f"made by {call.name}")


def _dimensions(call: Call) -> Iterator[Layout]:
    """The dimensions of all operands."""
    for tensor in call.tensors():
        yield from call.record.of(tensor).dimensions


@cache
def _decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """Torch's table of decompositions; imported late, as it is large and rarely needed."""
    from torch._decomp import core_aten_decompositions

    return dict(core_aten_decompositions())
