"""Everything that a module holds, however it is kept, with the way that leads there.

Attributes and hooks, containers and the objects in them, what functions enclose and default to,
partials, bound methods and weak references; and what all instances share: containers of the
module's class, and global ones that its code names.
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
"""How many things are looked at; beyond, a module holds a whole data set."""

_CONTAINERS = (dict, list, set, deque)
_CLOSED_TYPES: tuple[type, ...] = (
    *(str, bytes, bytearray, range, slice, complex, bool, int, float, type, type(None)),
    *(types.ModuleType, types.CodeType, np.ndarray, np.generic),
    *(torch.dtype, torch.device, torch.UntypedStorage, torch.TypedStorage),
)

_PLAIN = frozenset({*(str, bytes, bool, int, float, type(None)), torch.dtype, torch.device})
"""The commonest of those, told apart without asking each."""

_KEPT_TYPES = (*_CONTAINERS, Tensor, nn.Module)
"""What counts where code that is nobody's own keeps something."""

Owner = Literal["module", "class", "global"]


class HeldItem(NamedTuple):
    """One thing that a module holds; a tuple, as thousands are made for every forward."""

    path: str  # in words, from the module on
    value: Any
    owner: Owner = "module"  # all instances share what belongs to their class, or to no one
    direct: bool = True  # attributes, containers and objects alone lead there: a copy has its own

    def below(self, path: str, value: Any) -> HeldItem:
        """What attributes and containers hold."""
        return HeldItem(path, value, self.owner, self.direct)

    def through(self, path: str, value: Any) -> HeldItem:
        """What functions, methods and references lead to."""
        return HeldItem(path, value, self.owner, False)


def reach(root: object) -> Iterator[HeldItem]:
    """All that can be reached from ``root``, each once, nearest first; but for `empty_tables`.

    >>> net, hidden = nn.Module(), nn.Linear(2, 2)
    >>> net.scale = (lambda layer: lambda x: layer(x))(hidden)
    >>> [item.path for item in reach(net) if isinstance(item.value, nn.Module)]
    ['', "scale, which encloses 'layer'"]
    """
    waiting = deque([HeldItem("", root)])
    visited_ids = {id(root)}
    visited_classes: set[type] = set()
    kept_alive = []  # what is made on the way, so that no two get the same id
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
    """Tensors that are no parameter or buffer but share memory with one: id -> path, that one.

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
    """The tensors of a copy that are `aliases` in the module; the copy has own memory for them.

    By identity: path, path of the weight, and the tensor, so that no other one gets its identity.
    """
    paths = dict(aliases(module).values())
    return {
        id(item.value): (item.path, paths[item.path], item.value)
        for item in (reach(duplicate) if paths else ())
        if item.path in paths
    }


def alias_problem(path: str, weight: str) -> str:
    """Why a model that reads such a tensor cannot be cut."""
    return (
        f"{path}: the forward reads it, and it lies in the memory of {weight}; a sub-model's would "
        f"not follow the training: read {weight} itself"
    )


def _inside(holder: HeldItem, visited_classes: set[type]) -> Iterator[HeldItem]:
    value, path = holder.value, holder.path
    if holder.owner != "module" and not isinstance(value, (*_KEPT_TYPES, tuple)):
        return  # other people's code: only what is plainly kept there counts
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
    """What an object of any type keeps under names."""
    attributes = dict(table_of(value) or {})
    kind: Any = type(value)
    for name, slot in _slots_of(kind):
        with contextlib.suppress(AttributeError):
            attributes[name] = slot.__get__(value)
    return attributes


@functools.lru_cache(maxsize=4096)
def _slots_of(kind: type) -> list[tuple[str, types.MemberDescriptorType]]:
    """The names that a type has places for, beside or instead of a dictionary."""
    return [
        (name, slot)
        for owner in kind.__mro__
        if "__slots__" in vars(owner)
        for name, slot in vars(owner).items()
        if isinstance(slot, types.MemberDescriptorType)
    ]


def has_slots(kind: type) -> bool:
    """Whether objects of a type keep something in places of its own, beside their attributes."""
    return bool(_slots_of(kind))


def table_of(value: object) -> dict[str, Any] | None:
    """An object's own dictionary of attributes; not that of something it stands for."""
    try:
        table = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
    return table if isinstance(table, dict) else None


def empty_tables(module: nn.Module) -> list[str]:
    """The tables of hooks and members that torch gives every module, where they hold nothing.

    They are nine in ten of the containers of a model, so whoever looks at all of them is slow.

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
    """Containers of a class, and global ones that its methods name."""
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
    """All names in a piece of code and in the functions written in it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return tuple(dict.fromkeys((*code.co_names, *(n for one in inner for n in _names(one)))))


@functools.lru_cache(maxsize=4096)
def _read_globals(code: types.CodeType) -> frozenset[str]:
    """Those of the names that are global, not attributes."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in _GLOBAL}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _read_globals(constant)
    return frozenset(names)


_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}


def content(cell: types.CellType) -> Any:
    """What a function encloses in a cell; None if nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
