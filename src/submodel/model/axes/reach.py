"""All objects that a module refers to, with the path to each.

References are attributes and hooks, containers and the objects in them, closures and defaults of
functions, partials, bound methods and weak references. Objects that all instances share are
included: containers of the module's class, and global ones that its code names.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

MOST = 200_000
"""The largest number of objects to visit; a module with more holds a whole data set."""

_CONTAINERS = (dict, list, set, deque)
_CLOSED_TYPES: tuple[type, ...] = (
    *(str, bytes, bytearray, range, slice, complex, bool, int, float, type, type(None)),
    *(types.ModuleType, types.CodeType, np.ndarray, np.generic),
    *(torch.dtype, torch.device, torch.UntypedStorage, torch.TypedStorage),
)

_PLAIN = frozenset({*(str, bytes, bool, int, float, type(None)), torch.dtype, torch.device})
"""The most common closed types, for a fast check."""

_KEPT_TYPES = (*_CONTAINERS, Tensor, nn.Module)
"""Types that are visited in classes and globals."""

Owner = Literal["module", "class", "global"]


class HeldItem(NamedTuple):
    """One object that a module refers to; a tuple, as thousands are made per forward pass."""

    path: str  # from the module, in words
    value: Any
    owner: Owner = "module"  # all instances share objects of their class and globals
    direct: bool = True  # only attributes, containers and objects on the path: a copy has its own

    def below(self, path: str, value: Any) -> HeldItem:
        """An object in an attribute or container."""
        return HeldItem(path, value, self.owner, self.direct)

    def through(self, path: str, value: Any) -> HeldItem:
        """An object reached through a function, method or reference."""
        return HeldItem(path, value, self.owner, False)


def reach(root: object) -> Iterator[HeldItem]:
    """All objects reachable from ``root``, each once, nearest first, except `empty_tables`.

    >>> net, hidden = nn.Module(), nn.Linear(2, 2)
    >>> net.scale = (lambda layer: lambda x: layer(x))(hidden)
    >>> [item.path for item in reach(net) if isinstance(item.value, nn.Module)]
    ['', "scale, which encloses 'layer'"]
    """
    waiting = deque([HeldItem("", root)])
    visited_ids = {id(root)}
    visited_classes: set[type] = set()
    kept_alive = []  # temporary objects, so that ids stay unique
    while waiting and len(visited_ids) < MOST:
        item = waiting.popleft()
        kept_alive.append(item.value)
        yield item
        for below in _inside(item, visited_classes):
            value = below.value
            if (
                type(value) in _PLAIN
                or id(value) in visited_ids
                or isinstance(value, _CLOSED_TYPES)
            ):
                continue
            visited_ids.add(id(value))
            waiting.append(below)


def aliases(module: nn.Module) -> dict[int, tuple[str, str]]:
    """Tensors that share memory with a parameter or buffer: id -> (path, name of the latter).

    >>> net = nn.Linear(2, 2)
    >>> net.scale = net.bias.data
    >>> list(aliases(net).values())
    [('scale', 'bias')]
    """
    weights = {id(t): n for n, t in (*module.named_parameters(), *module.named_buffers())}
    tensors = [
        item
        for item in reach(module)
        if isinstance(item.value, Tensor) and item.value.layout is torch.strided
    ]
    memories = {
        item.value.untyped_storage()._cdata: weights[id(item.value)]
        for item in tensors
        if id(item.value) in weights and item.value.numel()
    }
    return {
        id(item.value): (item.path, memories[memory])
        for item in tensors
        if id(item.value) not in weights
        and (memory := item.value.untyped_storage()._cdata) in memories
    }


def copied_aliases(module: nn.Module, duplicate: nn.Module) -> dict[int, tuple[str, str, object]]:
    """The tensors of a copy that are `aliases` in the module; in the copy they share no memory.

    By id: path, path of the weight, and the tensor, which keeps the id unique.
    """
    paths = dict(aliases(module).values())
    return {
        id(item.value): (item.path, paths[item.path], item.value)
        for item in (reach(duplicate) if paths else ())
        if item.path in paths
    }


def alias_problem(path: str, weight: str) -> str:
    """A message that a model that reads such a tensor cannot be cut."""
    return (
        f"{path}: the forward reads it, and it shares memory with {weight}; in a sub-model it "
        f"would not change in training: read {weight} itself"
    )


def _inside(holder: HeldItem, visited_classes: set[type]) -> Iterator[HeldItem]:
    value, path = holder.value, holder.path
    if holder.owner != "module" and not isinstance(value, (*_KEPT_TYPES, tuple)):
        return  # in foreign code, only containers, tensors and modules are visited
    if isinstance(value, nn.Module):
        yield from _of_module(holder, visited_classes)
    elif isinstance(value, Tensor):
        for name, item in value.__dict__.items():
            yield holder.below(_join(path, name), item)
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            if type(item) not in _PLAIN:
                yield holder.below(f"{path}[{key!r}]", item)
    elif isinstance(value, list | tuple | deque):
        for place, item in enumerate(list(value)):
            if type(item) not in _PLAIN:
                yield holder.below(f"{path}[{place}]", item)
    elif isinstance(value, set | frozenset):
        for item in list(value):
            yield holder.below(f"{path}[...]", item)
    elif isinstance(value, functools.partial):
        for item in (value.func, *value.args, *value.keywords.values()):
            yield holder.through(f"{path} (a partial)", item)
    elif isinstance(value, types.MethodType):
        yield holder.through(f"{path} (a method)", value.__self__)
        yield holder.through(f"{path} (a method)", value.__func__)
    elif isinstance(value, types.BuiltinMethodType):
        yield holder.through(f"{path} (a method)", value.__self__)
    elif isinstance(value, types.FunctionType):
        yield from _of_function(holder)
    elif isinstance(value, weakref.ref):
        yield holder.through(f"{path} (a weak reference)", value())
    else:
        for name, item in list(attributes_of(value).items()):
            yield holder.below(_join(path, name), item)


def attributes_of(value: object) -> dict[str, Any]:
    """The attributes of an object of any type, including slots."""
    attributes = dict(table_of(value) or {})
    kind: Any = type(value)
    for name, slot in _slots_of(kind):
        with contextlib.suppress(AttributeError):
            attributes[name] = slot.__get__(value)
    return attributes


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type) -> list[tuple[str, types.MemberDescriptorType]]:
    """The slots of a type."""
    return [
        (name, slot)
        for owner in kind.__mro__
        if "__slots__" in vars(owner)
        for name, slot in vars(owner).items()
        if isinstance(slot, types.MemberDescriptorType)
    ]


def has_slots(kind: type) -> bool:
    """Return whether a type has slots."""
    return bool(_slots_of(kind))


def table_of(value: object) -> dict[str, Any] | None:
    """An object's own attribute dictionary, bypassing proxies."""
    try:
        table = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return table if isinstance(table, dict) else None


def empty_tables(module: nn.Module) -> list[str]:
    """The empty tables of hooks and members that torch creates for every module.

    They are nine in ten of the containers of a model, so visiting all of them would be slow.

    >>> "_forward_hooks" in empty_tables(nn.Identity()), "_parameters" in empty_tables(nn.ReLU())
    (True, True)
    """
    attributes = vars(module)
    return [name for name in _TABLES if name in attributes and not attributes[name]]


_TABLES = [name for name, item in vars(nn.Module()).items() if isinstance(item, dict | set)]


def _of_module(holder: HeldItem, visited_classes: set[type]) -> Iterator[HeldItem]:
    module: nn.Module = holder.value
    plain = dict(vars(module))
    for table in empty_tables(module):
        del plain[table]
    prefix = f"{holder.path}." if holder.path else ""
    for table in ("_parameters", "_buffers", "_modules"):
        children = plain.pop(table, None)
        if isinstance(children, dict):
            yield holder.below(prefix + table, children)
            for name, item in list(children.items()):
                if item is not None:
                    yield holder.below(prefix + name, item)
    for name, item in plain.items():
        if type(item) not in _PLAIN:
            yield holder.below(prefix + name, item)
    for kind in type(module).__mro__:
        if kind not in visited_classes:
            visited_classes.add(kind)
            if not kind.__module__.startswith("torch.") and issubclass(kind, nn.Module):
                yield from _of_class(kind)


def _of_class(kind: type) -> Iterator[HeldItem]:
    """Containers of a class, and global containers that its methods name."""
    for name, item in list(vars(kind).items()):
        if isinstance(item, (*_CONTAINERS, Tensor)) and not name.startswith("__"):
            yield HeldItem(f"{kind.__name__}.{name}", item, "class", False)
        elif isinstance(item, types.FunctionType):
            yield from _globals_of(item)


def _of_function(holder: HeldItem) -> Iterator[HeldItem]:
    function: types.FunctionType = holder.value
    if holder.path:
        encloses, defaults = (
            f"{holder.path}, which encloses {{!r}}",
            f"{holder.path} (as a default)",
        )
    else:
        encloses, defaults = "{!r}, which it encloses", "a default"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if (item := content(cell)) is not None:
            yield holder.through(encloses.format(name), item)
    for item in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield holder.through(defaults, item)
    for name, item in vars(function).items():
        yield holder.through(_join(holder.path, name), item)
    yield from _globals_of(function)


def _globals_of(function: types.FunctionType) -> Iterator[HeldItem]:
    global_names = function.__globals__
    for name in _names(function.__code__):
        item = global_names.get(name)
        if isinstance(item, _KEPT_TYPES) and name in _read_globals(function.__code__):
            yield HeldItem(f"the global {name}", item, "global", False)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """All names in a code object and in its inner functions."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return tuple(dict.fromkeys((*code.co_names, *(n for one in inner for n in _names(one)))))


@functools.lru_cache(maxsize=4096)
def _read_globals(code: types.CodeType) -> frozenset[str]:
    """The names that are globals, not attributes."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in _GLOBAL}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _read_globals(constant)
    return frozenset(names)


_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}


def content(cell: types.CellType) -> Any:
    """The content of a closure cell; None if it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
