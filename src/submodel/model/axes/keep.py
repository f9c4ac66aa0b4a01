"""Putting a module back as it was: what a forward writes down is not the model's.

Models remember sizes, count calls, fill caches and clip their weights while they run. A forward
that is run for our own sake must leave none of it behind, and least of all the integers that a
trace hands out.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from submodel.model.axes.number import TracedInt
from submodel.model.axes.reach import (
    HeldItem,
    attributes_of,
    content,
    empty_tables,
    reach,
    table_of,
)

Undo = Callable[[], None]


@contextlib.contextmanager
def preserve(module: nn.Module) -> Iterator[None]:
    """What ``module`` holds is the same after this block as before, in the same places.

    >>> net = nn.Identity()
    >>> net.sizes = []
    >>> with preserve(net):
    ...     net.sizes.append(2)
    ...     net.last = 2
    >>> net.sizes, hasattr(net, "last")
    ([], False)
    """
    items = list(reach(module))
    undo = [step for one in items for step in _steps(one)]
    writes = _Writes(one.value for one in items if isinstance(one.value, Tensor))
    try:
        with writes:
            yield
    finally:
        writes.undo()
        for step in undo:
            step()


def _steps(item: HeldItem) -> Iterator[Undo]:
    """How one thing is put back."""
    value = item.value
    if isinstance(value, Tensor):
        yield _tensor(value)
    elif isinstance(value, dict):
        yield _mapping(value, by_ourselves=item.owner == "global")
    elif isinstance(value, list | deque):
        yield _sequence(value, by_ourselves=item.owner == "global")
    elif isinstance(value, set):
        yield _set(value)
    elif isinstance(value, torch.Generator):
        yield _state(value.get_state(), value.set_state)
    elif isinstance(value, Random):
        yield _state(value.getstate(), value.setstate)
    elif isinstance(value, np.random.Generator):
        bits = value.bit_generator
        yield _state(bits.state, lambda state: setattr(bits, "state", state))
    elif closure := getattr(value, "__closure__", None):
        yield from map(_cell, closure)
    if isinstance(value, nn.Module):
        yield _empty_tables(value)
    if (table := table_of(value)) is not None:
        yield _mapping(table)
    elif not isinstance(value, type) and attributes_of(value):
        yield _slots(value)


def _empty_tables(module: nn.Module) -> Undo:
    """Tables of torch's that hold nothing, and will not."""
    tables = [vars(module)[name] for name in empty_tables(module)]

    def undo() -> None:
        for table in tables:
            if table:
                table.clear()

    return undo


def _state(state: Any, put: Callable[[Any], object]) -> Undo:
    def undo() -> None:
        put(state)

    return undo


def _mapping(table: dict[Any, Any], by_ourselves: bool = False) -> Undo:
    before = list(table.items())

    def undo() -> None:
        now = list(table.items())
        same = len(now) == len(before) and all(
            a is c and b is d for (a, b), (c, d) in zip(now, before, strict=True)
        )
        if same or (by_ourselves and not any(map(_ours, now))):
            return
        table.clear()
        for key, value in before:
            table[key] = value

    return undo


def _sequence(items: list[Any] | deque[Any], by_ourselves: bool = False) -> Undo:
    before = list(items)

    def undo() -> None:
        same = len(items) == len(before) and all(map(_is, items, before))
        if not same and not (by_ourselves and not any(map(_ours, items))):
            items.clear()
            items.extend(before)

    return undo


def _ours(value: Any) -> bool:
    """Whether a forward of ours left this in a global container, which others may fill as well."""
    if isinstance(value, tuple | list):
        return any(map(_ours, value))
    return isinstance(value, TracedInt | Tensor)


def _is(one: object, other: object) -> bool:
    return one is other


def _set(members: set[Any]) -> Undo:
    before = set(members)

    def undo() -> None:
        if {id(m) for m in members} != {id(m) for m in before}:
            members.clear()
            members.update(before)

    return undo


def _slots(value: object) -> Undo:
    before = attributes_of(value)

    def undo() -> None:
        for name, item in before.items():
            if getattr(value, name, None) is not item:
                object.__setattr__(value, name, item)

    return undo


def _cell(cell: Any) -> Undo:
    before = content(cell)

    def undo() -> None:
        if content(cell) is not before:
            cell.cell_contents = before

    return undo


def _tensor(tensor: Tensor) -> Undo:
    """Its memory, and what belongs to training; the values in it are `_Writes`' part."""
    data, requires_grad, is_leaf = tensor.data, tensor.requires_grad, tensor.grad_fn is None

    def geometry(of: Tensor) -> tuple[object, ...]:
        dense = of.layout is torch.strided
        return (of.shape, of.stride(), of.storage_offset(), _memory(of)) if dense else ()

    def undo() -> None:
        if geometry(tensor) != geometry(data):
            tensor.data = data
        if is_leaf and tensor.requires_grad != requires_grad:
            tensor.requires_grad_(requires_grad)

    return undo


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of ours, which sees every operator."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; True would import the compiler, which takes a second."""
        return False


class _Writes(DispatchMode):
    """Copies the memory of the given tensors the first time that an operator writes to it."""

    def __init__(self, tensors: Iterator[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        dense = [t for t in tensors if t.layout is torch.strided and not t.is_meta]
        self._memories = {_memory(t): t.untyped_storage() for t in dense}
        self._before: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        if func._schema.is_mutable or "batch_norm" in func._schema.name:  # that one does not say
            for place, argument in enumerate(func._schema.arguments):
                value = args[place] if place < len(args) else keywords.get(argument.name)
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                        self._save(_memory(tensor))
        return func(*args, **keywords)

    def _save(self, memory: int) -> None:
        storage = self._memories.get(memory)
        if storage is not None and memory not in self._before:
            self._before[memory] = storage.clone()  # type: ignore[no-untyped-call]

    def undo(self) -> None:
        """Put back what was written over."""
        for memory, values in self._before.items():
            storage = self._memories[memory]
            if storage.nbytes() != values.nbytes():
                storage.resize_(values.nbytes())
            storage.copy_(values)
