"""A deep copy of a module without references to the original.

`copy.deepcopy` does not copy functions and weak references, so a lambda in an attribute, a hook or
a weak reference to a parent would still read the full model. Here the objects that they enclose are
replaced by their copies. References that cannot be reached this way (global registries, classes,
objects that cannot be copied) show when the sub-model runs, see `checks`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from torch import Tensor, nn

from submodel.core.errors import SubmodelError
from submodel.model.axes.reach import empty_tables, reach, table_of

Memo = dict[int, Any]
"""The memo of `copy.deepcopy`: id of the original -> copy."""
_LEADING = {types.FunctionType, types.MethodType, types.BuiltinMethodType, weakref.ref, tuple}
"""Types that `copy.deepcopy` does not copy, or whose parts it may not copy."""


def copy_module(
    module: nn.Module, tensors: Mapping[str, Tensor], shared: Iterable[object] = ()
) -> nn.Module:
    """A deep copy with the given parameters and buffers in place of the module's own.

    ``shared`` objects are not copied.

    >>> import torch
    >>> net = nn.Linear(2, 2)
    >>> net.double = (lambda layer: lambda x: 2 * layer(x))(net)
    >>> zeros = {n: nn.Parameter(torch.zeros_like(p)) for n, p in net.named_parameters()}
    >>> small = copy_module(net, zeros)
    >>> small.double(torch.ones(1, 2)).tolist()
    [[0.0, 0.0]]
    """
    originals = chain(module.named_parameters(), module.named_buffers())
    memo: Memo = {id(tensor): tensors[name] for name, tensor in originals} | _new_tables(module)
    memo |= {id(value): value for value in shared}
    try:
        module_copy = _deepcopy(module, memo)
        _Rebinding(memo).run()
    except Exception as problem:
        raise SubmodelError(_copy_problem(module, problem)) from problem
    return module_copy


def _new_tables(module: nn.Module) -> Memo:
    """Copies of the empty tables of every layer; deep copies would take half of the time."""
    tables = (vars(layer)[name] for layer in module.modules() for name in empty_tables(layer))
    return {id(table): type(table)() for table in tables if type(table) in _TABLES}


_TABLES = {dict, OrderedDict, set}


class _Rebinding:
    """Replaces references to the original in functions and weak references by its copy."""

    def __init__(self, memo: Memo) -> None:
        self._memo = memo
        self._originals: list[Any] = memo.setdefault(id(memo), [])  # all that was copied
        self._cells: dict[int, types.CellType] = {}

    def run(self) -> None:
        """Correct all copies in place."""
        for original in self._originals:  # the list grows meanwhile
            duplicate = self._memo[id(original)]
            if isinstance(duplicate, dict):
                self._entries(duplicate, duplicate.items())
            elif isinstance(duplicate, list | deque):
                self._entries(duplicate, enumerate(duplicate))
            elif isinstance(duplicate, functools.partial):
                self._partial(duplicate)
            elif not isinstance(duplicate, Tensor) and (table := table_of(duplicate)) is not None:
                self._entries(table, table.items())

    def _entries(self, holder: Any, entries: Iterable[tuple[Any, Any]]) -> None:
        for key, value in entries:
            if type(value) in _LEADING and (new := self.rebind(value)) is not value:
                holder[key] = new

    def _partial(self, partial: functools.partial[Any]) -> None:
        function = self.rebind(partial.func)
        args = tuple(map(self.rebind, partial.args))
        keywords = {name: self.rebind(value) for name, value in partial.keywords.items()}
        partial.__setstate__((function, args, keywords, partial.__dict__ or None))  # type: ignore[attr-defined]

    def rebind(self, value: Any) -> Any:
        """The copy of the value if there is one, else the value."""
        if id(value) in self._memo:
            return self._memo[id(value)]
        if isinstance(value, types.FunctionType):
            return value if _importable(value) else self._function(value)
        if isinstance(value, types.MethodType):
            function, owner = self.rebind(value.__func__), self.rebind(value.__self__)
            same = function is value.__func__ and owner is value.__self__
            return value if same else types.MethodType(function, owner)
        if isinstance(value, types.BuiltinMethodType):
            owner = self.rebind(value.__self__)
            return value if owner is value.__self__ else getattr(owner, value.__name__)
        if type(value) is weakref.ref:
            target = value()
            return weakref.ref(self._memo[id(target)]) if id(target) in self._memo else value
        if type(value) is tuple:
            items = tuple(map(self.rebind, value))
            return value if all(map(operator.is_, items, value)) else items
        return value

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        """A function of the same code with copied variables; shared variables stay shared."""
        before = function.__closure__ or ()
        fresh = [cell for cell in before if id(cell) not in self._cells]
        self._cells |= {id(cell): types.CellType() for cell in fresh}
        new = types.FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            closure=tuple(self._cells[id(cell)] for cell in before) or None,
        )
        self._memo[id(function)] = new  # it may enclose itself
        self._originals.append(function)
        for cell in fresh:
            with contextlib.suppress(ValueError):  # an empty cell
                self._cells[id(cell)].cell_contents = self._variable(cell.cell_contents)
        new.__defaults__ = function.__defaults__ and tuple(
            map(self._variable, function.__defaults__)
        )
        new.__kwdefaults__ = function.__kwdefaults__ and {
            name: self._variable(value) for name, value in function.__kwdefaults__.items()
        }
        new.__qualname__, new.__doc__ = function.__qualname__, function.__doc__
        new.__module__, new.__annotations__ = function.__module__, function.__annotations__
        new.__dict__.update({name: self._variable(v) for name, v in vars(function).items()})
        return new

    def _variable(self, value: Any) -> Any:
        """The value of a function's variable in the copy.

        Containers and objects that lead back to the original are copied. Other objects are no state
        of the module and may be large or impossible to copy.
        """
        new = self.rebind(value)
        if new is not value or isinstance(value, _OPAQUE):
            return new
        if not isinstance(value, _CONTAINERS) and not self._leads_back(value):
            return value
        try:
            return copy.deepcopy(value, self._memo)
        except Exception:  # if the value matters, the error shows when the sub-model runs
            return value

    def _leads_back(self, value: object) -> bool:
        """Return whether a value leads to a part of the original."""
        near_things = islice(reach(value), NEAR)
        return any(
            id(thing.value) in self._memo for thing in near_things if thing.owner == "module"
        )


def _importable(function: types.FunctionType) -> bool:
    """Return whether a function is a global of its Python module, and so shared by all copies."""
    module = sys.modules.get(function.__module__)
    return getattr(module, function.__qualname__, None) is function


_OPAQUE = (str, bytes, int, float, complex, type(None), type, types.ModuleType, Tensor, nn.Module)
_CONTAINERS = (list, dict, set, deque, functools.partial)
NEAR = 2000
"""The number of enclosed objects to inspect; others show when the sub-model runs."""


def _deepcopy(module: nn.Module, memo: Memo) -> nn.Module:
    """`copy.deepcopy` that also copies results of computations stored in the model."""
    initial_memo = dict(memo)
    try:
        module_copy = copy.deepcopy(module, memo)
    except RuntimeError:
        results = [h.value for h in reach(module) if isinstance(h.value, Tensor)]
        results = [t for t in results if not t.is_leaf and id(t) not in initial_memo]
        if not results:
            raise
        memo.clear()
        memo.update(initial_memo)
        for tensor in results:
            memo[id(tensor)] = tensor.detach().clone()
            memo.setdefault(id(memo), []).append(tensor)  # keeps the id unique
        module_copy = copy.deepcopy(module, memo)
    return module_copy


def _copy_problem(module: nn.Module, problem: Exception) -> str:
    """Describe the attribute that cannot be copied."""
    for where, value, cause in uncopyable(module):
        what = f"a {type(value).__name__}, cannot be copied"
        return f"cannot build the sub-model: {where}, {what}: {cause}"
    return f"cannot build the sub-model: {type(module).__name__} cannot be copied: {problem}"


def uncopyable(module: nn.Module) -> Iterator[tuple[str, object, Exception]]:
    """Attributes of layers that cannot be copied: description, value, cause."""
    parts = [*module.modules(), *module.parameters(), *module.buffers()]
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            try:
                copy.deepcopy(value, {id(part): part for part in parts})
            except Exception as cause:  # copying may raise any exception
                kind = f"{path or 'the model'} ({type(layer).__name__})"
                yield f"{kind}: its attribute {name!r}", value, cause
