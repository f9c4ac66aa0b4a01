"""Forward passes on a temporary copy of a module, which leave the module unchanged.

Models store sizes, count calls, fill caches and clip their weights while they run. A forward pass
for tracing or measuring must leave no such changes, in particular not the integers of a trace. So a
copy runs. Objects that the copy still shares with the module (containers of classes and Python
files, objects that cannot be copied, the weights of a large model) are restored afterwards.
`StateSnapshot` detects state that one forward pass leaves for the next.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from submodel.core.errors import SubmodelError
from submodel.model.axes.number import TracedInt
from submodel.model.axes.reach import attributes_of, reach, table_of
from submodel.model.axes.record import storage

LARGE_MODEL = 1 << 26
"""Bytes of weights from which on a model gets no second set of weights, to save memory."""
COPIED = 1 << 20
"""Below these bytes, copying weights is faster than watching for writes to them."""

Undo = Callable[[], None]
_Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any]


def is_large(module: nn.Module) -> bool:
    """Return whether the module is too large for a second set of weights."""
    return _bytes(module) >= LARGE_MODEL


def _bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters() if not p.is_meta)


@contextlib.contextmanager
def temporary_copy(module: nn.Module) -> Iterator[nn.Module]:
    """A copy of ``module`` to run; shared objects are restored at the end of the block.

    >>> net = nn.Identity()
    >>> net.sizes = []
    >>> with temporary_copy(net) as duplicate:
    ...     duplicate.sizes.append(2)
    ...     duplicate.last = 2
    >>> net.sizes, hasattr(net, "last")
    ([], False)
    """
    watched = _bytes(module) >= COPIED
    values = {
        name: tensor.detach() if watched and isinstance(tensor, nn.Parameter) else tensor.clone()
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }
    duplicate = copy_with(module, values)
    weights = duplicate.parameters() if watched else ()
    with keep_shared(module, duplicate, weights):
        yield duplicate


def copy_with(module: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """A copy of ``module`` with these tensors; objects that cannot be copied are shared."""
    from submodel.model.build.copying import copy_module, uncopyable  # they import `reach`

    parameters = {
        name: nn.Parameter(values[name].detach(), p.requires_grad)
        for name, p in module.named_parameters()
    }
    buffers = {name: values[name].detach() for name, _ in module.named_buffers()}
    try:
        return copy_module(module, {**parameters, **buffers})
    except SubmodelError:
        shared = [value for _, value, _ in uncopyable(module)]
        if not shared:
            raise
        return copy_module(module, {**parameters, **buffers}, shared)


@contextlib.contextmanager
def keep_shared(
    module: nn.Module, duplicate: nn.Module, weights: Iterable[Tensor] = ()
) -> Iterator[list[Tensor]]:
    """Restore the objects shared by both modules, and ``weights``, at the end of the block.

    Yields the shared tensors: for example, the copy of a module that looks up its layers in a
    global registry reads the module's own tensors.
    """
    items = list(reach(module))  # held, so that no two get the same id
    ids = {id(item.value) for item in items}
    shared = [item for item in reach(duplicate) if id(item.value) in ids]
    undo = [step for one in shared for step in _steps(one.value, one.owner == "global")]
    tensors = [one.value for one in shared if isinstance(one.value, Tensor)]
    writes = _Writes(watched := [*weights, *tensors])
    try:
        with writes if watched else contextlib.nullcontext():
            yield tensors
    finally:
        writes.undo()
        for step in undo:
            step()


def _steps(value: Any, is_global: bool) -> Iterator[Undo]:
    """Functions that restore an object; global tables only if the forward pass has filled them."""
    if isinstance(value, dict | list | set | deque):
        yield _container(value, isinstance(value, dict) and is_global)
    if (table := table_of(value)) is not None:
        yield _container(table)
    elif not isinstance(value, type) and (slots := attributes_of(value)):
        yield partial(_restore_slots, value, slots)


def _container(value: _Container, only_if_traced: bool = False) -> Undo:
    def contents() -> list[Any]:
        return list(value.items() if isinstance(value, dict) else value)

    def parts(items: list[Any]) -> list[int]:
        return [id(part) for item in items for part in (item if is_dict else (item,))]

    is_dict, before = isinstance(value, dict), contents()

    def undo() -> None:
        now = contents()
        if parts(now) == parts(before) or (only_if_traced and not any(map(_is_from_trace, now))):
            return
        value.clear()
        if isinstance(value, list | deque):
            value.extend(before)
        else:
            value.update(before)

    return undo


def _is_from_trace(value: Any) -> bool:
    """Return whether a traced forward pass left this value in a global container."""
    if isinstance(value, tuple | list):
        return any(map(_is_from_trace, value))
    return isinstance(value, TracedInt | Tensor)


def _restore_slots(value: object, before: Mapping[str, Any]) -> None:
    for name, item in before.items():
        if getattr(value, name, None) is not item:
            object.__setattr__(value, name, item)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that calls `_see` to compute every operator."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self._see(func, args, kwargs or {})

    def _see(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        """Compute the operator."""
        return func(*args, **keywords)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False, as True would import PyTorch's compiler, which takes a second."""
        return False


class _Writes(DispatchMode):
    """Copies the memory of the given tensors the first time that an operator writes to it."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        dense = [t for t in tensors if t.layout is torch.strided and not t.is_meta]
        self._memories = {storage(t): t.untyped_storage() for t in dense}
        self._before: dict[int, torch.UntypedStorage] = {}

    def _see(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        if func._schema.is_mutable or "batch_norm" in func._schema.name:  # its schema omits writes
            for place, argument in enumerate(func._schema.arguments):
                value = args[place] if place < len(args) else keywords.get(argument.name)
                for tensor in value if isinstance(value, list | tuple) else (value,):
                    if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                        self._save(storage(tensor))
        return func(*args, **keywords)

    def _save(self, memory: int) -> None:
        values = self._memories.get(memory)
        if values is not None and memory not in self._before:
            self._before[memory] = values.clone()  # type: ignore[no-untyped-call]

    def undo(self) -> None:
        """Restore the overwritten values."""
        for memory, values in self._before.items():
            written = self._memories[memory]
            if written.nbytes() != values.nbytes():
                written.resize_(values.nbytes())
            written.copy_(values)


_PLAIN = {list, dict, set, deque, tuple, OrderedDict, defaultdict}


class StateSnapshot:
    """The tensors in the attributes of all layers and in plain containers, at one point in time.

    >>> net = nn.Linear(2, 2)
    >>> before = StateSnapshot(net)
    >>> net.last, net.in_features = torch.ones(2), 3
    >>> [tuple(tensor.shape) for tensor in before.new_tensors()]
    [(2,)]
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tensors = _tensors(_containers(module))
        self._buffers = [(b, b.detach().clone()) for b in module.buffers()]

    def new_tensors(self) -> list[Tensor]:
        """Tensors that the module has obtained since; a later forward pass may read them."""
        tensors = _tensors(_containers(self._module))
        return [t for key, t in tensors.items() if key not in self._tensors]

    def has_changed(self) -> bool:
        """Return whether the module has a new tensor or new values in a buffer."""
        if self.new_tensors():
            return True
        dense = [(b, v) for b, v in self._buffers if b.layout is torch.strided and not b.is_meta]
        return any(not torch.equal(buffer, value) for buffer, value in dense)


_WITHOUT_TENSORS = {bool, int, float, str, type(None), dict, OrderedDict, set, list}
"""Types that contain no tensors, or containers that are visited separately."""
_INTERNAL = {"_parameters", "_modules"}  # no state, unlike hooks, which some forwards install


def _containers(module: nn.Module) -> Iterator[_Container]:
    """The attribute dictionary of every layer, and all plain containers in it."""
    visited_ids: set[int] = set()
    for layer in module.modules():
        attributes = vars(layer)
        yield attributes
        ahead = [
            attributes[n]
            for n in attributes
            if n not in _INTERNAL and type(attributes[n]) in _PLAIN
        ]
        while ahead:
            container = ahead.pop()
            if not isinstance(container, tuple):
                if id(container) in visited_ids:
                    continue
                visited_ids.add(id(container))
                yield container
            items = container.values() if isinstance(container, dict) else container
            ahead += [item for item in items if type(item) in _PLAIN]


def _tensors(containers: Iterable[_Container]) -> dict[int, Tensor]:
    tensors: dict[int, Tensor] = {}
    for container in containers:
        for value in container.values() if isinstance(container, dict) else container:
            if type(value) in _WITHOUT_TENSORS:  # most values; faster than `isinstance`
                continue
            if isinstance(value, Tensor):
                tensors[id(value)] = value
            elif type(value) is tuple:
                tensors.update((id(item), item) for item in value if isinstance(item, Tensor))
    return tensors
