"""One call of an operator as rules see it, and the table of the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from submodel.model.axes.expression import ONE, Expression
from submodel.model.axes.record import Dimensions, Record, TensorFacts

Results = list[Sequence[Expression]]
"""The dimensions of each result; results that a rule leaves out freeze what they came from."""


@dataclass(frozen=True)
class Call:
    """One call: the operator's arguments by name, its results, and the record of the trace."""

    record: Record
    name: str
    arguments: dict[str, Any]
    results: Sequence[Tensor]
    pending: list[tuple[Expression, str]] = field(default_factory=list)

    def __getitem__(self, argument: str) -> Any:
        return self.arguments[argument]

    def get(self, argument: str, default: Any = None) -> Any:
        """An argument that only some overloads have."""
        return self.arguments.get(argument, default)

    def facts(self, argument: str) -> TensorFacts:
        """What is known of a tensor argument."""
        return self.record.of(self.arguments[argument])

    def dimensions(self, argument: str) -> Dimensions:
        """The dimensions of a tensor argument."""
        return self.facts(argument).dimensions

    def tensors(self) -> list[Tensor]:
        """All tensor arguments, those in lists too."""
        tensors = []
        for value in self.arguments.values():
            items = value if isinstance(value, list | tuple) else (value,)
            tensors += [item for item in items if isinstance(item, Tensor)]
        return tensors

    def unify(self, one: Expression, other: Expression) -> Expression:
        """Make two dimensions the same."""
        return self.record.algebra.unify(one, other, f"read by {self.name}")

    def freeze(self, expression: Expression, words: str = "by position") -> None:
        """Fix a dimension, because the operator depends on the order of its units."""
        self.record.algebra.freeze(expression, f"read by {self.name}, {words}")

    def freeze_if_read(self, expression: Expression, words: str = "by position") -> None:
        """Fix a dimension as soon as a result is read; some are made for their shape only."""
        self.pending.append((expression, f"read by {self.name}, {words}"))

    def factor(self, expression: Expression, sizes: Sequence[int]) -> list[Expression]:
        """The row-major factors of a dimension."""
        return self.record.algebra.factor(expression, sizes, f"viewed by {self.name}")

    def pieces(self, expression: Expression, sizes: Sequence[int]) -> list[Expression]:
        """The consecutive pieces of a dimension."""
        return self.record.algebra.pieces(expression, sizes, f"split by {self.name}")

    def mix(self, expression: Expression, words: str) -> None:
        """Note that the operator combines the units of a dimension other than by weights."""
        self.record.mix(expression, f"{self.name} {words}")

    def note_steps(self, argument: str, dim: int) -> None:
        """Note that single positions are taken out of an activation, as a loop over steps does."""
        if not self.facts(argument).weight:
            self.record.steps.add(self[argument].shape[dim])

    def broadcast(self, operands: Sequence[Sequence[Expression]]) -> list[Expression]:
        """The dimensions of operands that broadcast against each other, from the last on."""
        result: list[Expression] = [ONE] * max(map(len, operands), default=0)
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
    """A rule; ``moves`` says that it only moves values, ``makes`` that it makes constants."""

    apply: Callable[[Call], Results]
    moves: bool = False
    makes: bool = False

    def is_constant(self, call: Call) -> bool:
        """Whether no input and no parameter has a part in the results."""
        operand_facts = [call.record.tensors.get(id(t)) for t in call.tensors()]
        return self.makes or (
            bool(operand_facts) and all(k is not None and k.constant for k in operand_facts)
        )

    def keeps_zeros(self, call: Call) -> bool:
        """Whether the result is zero wherever its weights are masked, so that it is a weight too.

        A view of a weight is one, and so are a multiple, a sum and a product of weights.
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
    """Enter a function into the table, for operators or single overloads (``max.dim``)."""

    def enter(function: Callable[[Call], Results]) -> Callable[[Call], Results]:
        for name in names:
            assert name not in _RULES, name
            _RULES[name] = Rule(function, moves, makes)
        return function

    return enter


def pointwise(call: Call) -> Results:
    """Operands broadcast against each other; every result has the common dimensions."""
    common = call.broadcast([call.record.of(t).dimensions for t in call.tensors()])
    return [common for _ in call.results]


def find_rule(operator: torch._ops.OpOverload) -> Rule | None:
    """The rule of an operator: by overload, by name, as in-place form of another, or by its tag.

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
    if torch.Tag.pointwise in operator.tags or _functional_is_pointwise(plain, overload):
        return Rule(pointwise)
    return None


def _functional_is_pointwise(plain: str, overload: str) -> bool:
    packet = getattr(torch.ops.aten, plain, None)
    functional = getattr(packet, overload, None) if overload in _overloads(packet) else None
    return functional is not None and torch.Tag.pointwise in functional.tags


def _overloads(packet: Any) -> Sequence[str]:
    return packet.overloads() if packet is not None else ()
