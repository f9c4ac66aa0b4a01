"""Snapshots of everything in a module, flattened for comparison: changes by name.

Attributes, containers and the objects in them, parameters and buffers with values, memory and
gradients, hooks, modes, functions with their closures, and containers of the classes.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Snapshot = Mapping[str, object]
"""Values of everything reachable by path, in a form that is compared by value."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)
_OPAQUE = (type, types.ModuleType, types.BuiltinFunctionType, torch.dtype, torch.device)


def snapshot(module: nn.Module) -> Snapshot:
    """Take a snapshot of everything reachable from ``module``."""
    return dict(_Walk().visit("model", module))


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Describe the differences."""
    return [
        f"{path}: {before.get(path, 'nothing')} -> {after.get(path, 'nothing')}"
        for path in {**before, **after}
        if before.get(path, "nothing") != after.get(path, "nothing")
    ]


def tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all tensors reachable from ``module``, wherever they are kept."""
    walk = _Walk()
    for _ in walk.visit("model", module):
        pass
    return walk.tensors


class _Walk:
    def __init__(self) -> None:
        self.seen: dict[int, str] = {}
        self.held: list[object] = []  # keeps temporary objects, so that no id is reused
        self.tensors: dict[str, Tensor] = {}

    def visit(self, path: str, value: Any) -> Iterator[tuple[str, object]]:
        kind = type(value)
        if isinstance(value, _PLAIN):
            yield path, (kind.__name__, repr(value))
            return
        self.held.append(value)
        if id(value) in self.seen:
            yield path, f"the same as {self.seen[id(value)]}"
            return
        self.seen[id(value)] = path
        yield path, (kind.__name__, id(value)) if kind not in _VALUES else kind.__name__
        yield from self.inside(path, value)

    def inside(self, path: str, value: Any) -> Iterator[tuple[str, object]]:
        if isinstance(value, Tensor):
            yield from self.tensor(path, value)
        elif isinstance(value, np.ndarray):
            yield f"{path}.values", (value.shape, value.dtype.str, value.tobytes())
        elif isinstance(value, Mapping):
            yield f"{path}.keys", [repr(key) for key in value]
            for key, item in value.items():
                yield from self.visit(f"{path}[{key!r}]", item)
        elif isinstance(value, list | tuple):
            for place, item in enumerate(value):
                yield from self.visit(f"{path}[{place}]", item)
        elif isinstance(value, set | frozenset):
            yield f"{path}.members", sorted(map(repr, value))
        elif isinstance(value, functools.partial):
            parts = {"func": value.func, "args": value.args, "keywords": value.keywords}
            yield from self.named(path, parts)
        elif isinstance(value, types.MethodType):
            yield from self.named(path, {"self": value.__self__, "function": value.__func__})
        elif isinstance(value, types.FunctionType):
            yield from self.function(path, value)
        elif isinstance(value, weakref.ref):
            yield from self.visit(f"{path}()", value())
        elif not isinstance(value, _OPAQUE):
            yield from self.named(path, getattr(value, "__dict__", {}))
            for name in getattr(type(value), "__slots__", ()):
                if isinstance(name, str) and hasattr(value, name):
                    yield from self.visit(f"{path}.{name}", getattr(value, name))
            if isinstance(value, nn.Module):
                yield from self.classes(type(value))

    def named(self, path: str, parts: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
        for name, item in list(parts.items()):
            yield from self.visit(f"{path}.{name}", item)

    def tensor(self, path: str, value: Tensor) -> Iterator[tuple[str, object]]:
        self.tensors[path] = value
        yield f"{path}.kind", (value.dtype, value.device, value.requires_grad, value.is_leaf)
        yield f"{path}.layout", (tuple(value.shape), value.stride(), value.storage_offset())
        yield f"{path}.memory", value.untyped_storage()._cdata
        plain = value.detach()
        yield f"{path}.values", plain.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        yield f"{path}.grad_fn", None if value.grad_fn is None else value.grad_fn.name()
        if value.is_leaf:
            yield from self.visit(f"{path}.grad", value.grad)
        yield from self.visit(f"{path}.hooks", value._backward_hooks)
        if value.__dict__:
            yield from self.named(path, value.__dict__)

    def function(self, path: str, value: types.FunctionType) -> Iterator[tuple[str, object]]:
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield from self.visit(f"{path}<{name}>", cell.cell_contents)
            except ValueError:
                yield f"{path}<{name}>", "an empty cell"
        yield from self.visit(f"{path}.defaults", value.__defaults__)
        yield from self.visit(f"{path}.keyword_defaults", value.__kwdefaults__)

    def classes(self, kind: type) -> Iterator[tuple[str, object]]:
        for owner in kind.__mro__:
            if owner.__module__.startswith("torch.") or owner is object or id(owner) in self.seen:
                continue
            self.seen[id(owner)] = owner.__qualname__
            for name, item in list(vars(owner).items()):
                container = isinstance(item, list | dict | set | Tensor)
                if container and not (name.startswith("__") and name.endswith("__")):
                    yield from self.visit(f"{owner.__qualname__}.{name}", item)


_VALUES = {tuple, torch.Size, frozenset, types.MethodType, weakref.ref}
"""Types whose objects are made anew each time, or whose identity does not matter."""
