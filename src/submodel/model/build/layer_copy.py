"""What `copy.deepcopy` does of a module, layer by layer: most that a layer holds is plain.

A layer has some twenty attributes, nearly all of them numbers, words, tensors that are known and
empty tables. `copy.deepcopy` asks of each how it wants to be copied; these need not be asked,
which takes a third of the time. Everything else goes through it, with the same memo.
"""

from __future__ import annotations

import copy
import copyreg
import types
import weakref
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from submodel.model.axes.reach import has_slots

Memo = dict[int, Any]
_VALUES = frozenset(
    {*(str, bytes, bool, int, float, complex, type(None)), torch.dtype, torch.device, torch.Size}
)
"""Types whose members are their own copies, and hold nothing."""
LEADING = {types.FunctionType, types.MethodType, types.BuiltinMethodType, weakref.ref, tuple}
"""Types that `copy.deepcopy` takes for values, or whose parts it does."""


def copy_layers(module: nn.Module, memo: Memo) -> nn.Module:
    """`copy.deepcopy` of a module.

    Args:
        module: any.
        memo: what stands for what, as `copy.deepcopy` keeps it: by the identity of the original.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> net.first = net[0]
    >>> duplicate = copy_layers(net, {})
    >>> duplicate.first is duplicate[0], duplicate[0] is net[0]
    (True, False)
    """
    return _Copying(memo).layer(module)


class _Copying:
    """One deep copy."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self._originals: list[Any] = memo.setdefault(id(memo), [])  # as `copy.deepcopy` keeps them

    def layer(self, layer: nn.Module) -> nn.Module:
        """The copy of a layer, made once."""
        duplicate: nn.Module
        if (earlier_copy := self._memo.get(id(layer))) is not None:
            duplicate = earlier_copy
            return duplicate
        kind: Any = type(layer)
        if not _is_copied_by_attributes(kind):
            duplicate = copy.deepcopy(layer, self._memo)
            return duplicate
        duplicate = kind.__new__(kind)
        self._memo[id(layer)] = duplicate  # what is below may lead back to it
        attributes: dict[str, Any] = layer.__getstate__()  # type: ignore[no-untyped-call]
        state = {name: self._value(value) for name, value in attributes.items()}
        if any(map(_leads, state.values())):
            self._originals.append(layer)
        restore: Callable[[dict[str, Any]], None] = duplicate.__setstate__
        restore(state)
        return duplicate

    def _value(self, value: Any) -> Any:
        kind = type(value)
        if kind in _VALUES:
            return value
        if (earlier_copy := self._memo.get(id(value))) is not None:
            return earlier_copy
        if kind is tuple and _is_plain(value):
            return value
        if kind is list and _is_plain(value):
            return self._memo.setdefault(id(value), list(value))
        if kind is dict:
            return self._table(value)
        if isinstance(value, nn.Module):
            return self.layer(value)
        return copy.deepcopy(value, self._memo)

    def _table(self, table: dict[Any, Any]) -> dict[Any, Any]:
        if not all(type(key) is str for key in table):
            duplicate: dict[Any, Any] = copy.deepcopy(table, self._memo)
            return duplicate
        new: dict[Any, Any] = {}
        self._memo[id(table)] = new
        new.update((name, self._value(value)) for name, value in table.items())
        if any(map(_leads, new.values())):
            self._originals.append(table)
        return new


def _is_plain(items: Iterable[Any]) -> bool:
    return all(type(item) in _VALUES for item in items)


def _leads(value: Any) -> bool:
    """Whether something of the original may be behind a value that was taken over as it is."""
    return type(value) in LEADING and not (type(value) is tuple and _is_plain(value))


@lru_cache(maxsize=4096)
def _is_copied_by_attributes(kind: type[Any]) -> bool:
    """Whether a copy is a new object with copies of the attributes, as of any ordinary class."""
    return (
        not hasattr(kind, "__deepcopy__")
        and kind not in copyreg.dispatch_table
        and all(
            getattr(kind, name, None) is getattr(nn.Module, name, None)
            for name in ("__new__", "__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__")
        )
        and not hasattr(kind, "__getnewargs_ex__")
        and not has_slots(kind)
    )
