"""Running a throw-away copy of a module: what a forward writes down is not the model's.

Models remember sizes, count calls, fill caches and clip their weights while they run. A forward
that is run for our own sake must leave none of it behind, and least of all the integers that a
trace hands out. So a copy runs. What the copy still shares with the module (containers of classes
and files, objects that refuse to be copied, the weights of a large model) is put back afterwards.
`Memory` tells what a forward left for the next.
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
"""Bytes of a model of which a second set of weights would fill the memory."""
COPIED = 1 << 20
"""Bytes of weights that are sooner copied than watched for operators that write to them."""

Undo = Callable[[], None]
_Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any]


def is_large(module: nn.Module) -> bool:
    """Return whether a second set of the module's weights would fill the memory."""
    return _bytes(module) >= LARGE_MODEL


def _bytes(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters() if not p.is_meta)


@contextlib.contextmanager
def throw_away(module: nn.Module) -> Iterator[nn.Module]:
    """A copy of ``module`` to run; what it shares with the module is put back after this block.

    >>> net = nn.Identity()
    >>> net.sizes = []
    >>> with throw_away(net) as duplicate:
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
    """A copy of ``module`` that has these tensors for its own; it shares what cannot be copied."""
    from submodel.model.build.copying import copy_module, that_refuse  # which need `reach` itself

    parameters = {
        name: nn.Parameter(values[name].detach(), p.requires_grad)
        for name, p in module.named_parameters()
    }
    buffers = {name: values[name].detach() for name, _ in module.named_buffers()}
    try:
        return copy_module(module, {**parameters, **buffers})
    except SubmodelError:
        shared = [value for _, value, _ in that_refuse(module)]
        if not shared:
            raise
        return copy_module(module, {**parameters, **buffers}, shared)


@contextlib.contextmanager
def keep_shared(
    module: nn.Module, duplicate: nn.Module, weights: Iterable[Tensor] = ()
) -> Iterator[list[Tensor]]:
    """What both modules hold is the same after this block as before, and so are ``weights``.

    Yields the tensors among it: the copy of a module that finds its layers in a global registry
    goes on reading those of the module.
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
    """How one thing is put back; global tables, which others fill as well, if we filled them."""
    if isinstance(value, dict | list | set | deque):
        yield _container(value, isinstance(value, dict) and is_global)
    if (table := table_of(value)) is not None:
        yield _container(table)
    elif not isinstance(value, type) and (slots := attributes_of(value)):
        yield partial(_put_back_slots, value, slots)


def _container(value: _Container, by_ourselves: bool = False) -> Undo:
    def contents() -> list[Any]:
        return list(value.items() if isinstance(value, dict) else value)

    def parts(items: list[Any]) -> list[int]:
        return [id(part) for item in items for part in (item if is_dict else (item,))]

    is_dict, before = isinstance(value, dict), contents()

    def undo() -> None:
        now = contents()
        if parts(now) == parts(before) or (by_ourselves and not any(map(_ours, now))):
            return
        value.clear()
        if isinstance(value, list | deque):
            value.extend(before)
        else:
            value.update(before)

    return undo


def _ours(value: Any) -> bool:
    """Return whether a forward of ours left this in a global container."""
    if isinstance(value, tuple | list):
        return any(map(_ours, value))
    return isinstance(value, TracedInt | Tensor)


def _put_back_slots(value: object, before: Mapping[str, Any]) -> None:
    for name, item in before.items():
        if getattr(value, name, None) is not item:
            object.__setattr__(value, name, item)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of ours: `_see` is called for every operator, and computes it."""

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
        """What the operator gives."""
        return func(*args, **keywords)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; True would import the compiler, which takes a second."""
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
        if func._schema.is_mutable or "batch_norm" in func._schema.name:  # that one does not say
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
        """Put back what was written over."""
        for memory, values in self._before.items():
            written = self._memories[memory]
            if written.nbytes() != values.nbytes():
                written.resize_(values.nbytes())
            written.copy_(values)


_PLAIN = {list, dict, set, deque, tuple, OrderedDict, defaultdict}


class Memory:
    """The tensors in the attributes of all layers and in their plain containers, as they were.

    >>> net = nn.Linear(2, 2)
    >>> before = Memory(net)
    >>> net.last, net.in_features = torch.ones(2), 3
    >>> [tuple(tensor.shape) for tensor in before.new_tensors()]
    [(2,)]
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tensors = _tensors(_containers(module))
        self._buffers = [(b, b.detach().clone()) for b in module.buffers()]

    def new_tensors(self) -> list[Tensor]:
        """Tensors that the module holds now and did not before: a later forward may read them."""
        tensors = _tensors(_containers(self._module))
        return [t for key, t in tensors.items() if key not in self._tensors]

    def has_changed(self) -> bool:
        """Whether the module holds another tensor than before, or other values in a buffer."""
        if self.new_tensors():
            return True
        dense = [(b, v) for b, v in self._buffers if b.layout is torch.strided and not b.is_meta]
        return any(not torch.equal(buffer, value) for buffer, value in dense)


_WITHOUT_TENSORS = {bool, int, float, str, type(None), dict, OrderedDict, set, list}
"""Types that are no tensor, or containers that are looked at by themselves."""
_INTERNAL = {"_parameters", "_modules"}  # no state; hooks are one, as some forwards install theirs


def _containers(module: nn.Module) -> Iterator[_Container]:
    """The attributes of every layer as a dict, and all plain containers in them."""
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
            if type(value) in _WITHOUT_TENSORS:  # most, and quicker than asking what it is
                continue
            if isinstance(value, Tensor):
                tensors[id(value)] = value
            elif type(value) is tuple:
                tensors.update((id(item), item) for item in value if isinstance(item, Tensor))
    return tensors
