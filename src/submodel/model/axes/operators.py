"""Watching the operators that run: each by its rule, and frozen where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from submodel.model.axes.expression import Expression, FixedTerm
from submodel.model.axes.keep import DispatchMode
from submodel.model.axes.record import Record
from submodel.model.axes.rules import Call, Rule, find_rule


@cache
def _rule(operator: torch._ops.OpOverload) -> Rule | None:
    return find_rule(operator)


@cache
def _parameters(operator: torch._ops.OpOverload) -> tuple[tuple[str, Any], ...]:
    """The arguments of an operator with their defaults."""
    return tuple((a.name, a.default_value) for a in operator._schema.arguments)


class OperatorWatch(DispatchMode):
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
        keywords = kwargs or {}
        rule = _rule(func)
        if rule is None:
            result = self._decompose(func, args, keywords)
            if result is not NotImplemented:
                return result
        arguments = {
            name: args[i] if i < len(args) else keywords.get(name, default)
            for i, (name, default) in enumerate(_parameters(func))
        }
        result = func(*args, **keywords)
        results = [result] if isinstance(result, Tensor) else _flat(result)
        self._apply(rule, Call(self.record, func._schema.name.split("::")[-1], arguments, results))
        return result

    def _decompose(
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
            fixed_terms = [FixedTerm(n, f"made by {call.name}") for n in tensor.shape]
            self.record.add(tensor, fixed_terms, pending=[(d, reason) for d in _dimensions(call)])

    def _apply(self, rule: Rule | None, call: Call) -> None:
        reason = f"read by {call.name}, which has no rule"
        if rule is not None:
            try:
                results = rule.apply(call)
                weight = bool(call.results) and rule.keeps_zeros(call)
                constant = rule.is_constant(call)
                for tensor, dimensions in zip(call.results, results, strict=False):
                    self.record.add(tensor, dimensions, weight, constant, call.pending)
                self._add_untold(call, call.results[len(results) :])
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
