"""Whether a sub-model keeps to itself: it must not read the full model it was cut from.

A layer kept in a global registry, in its class, or in an object that refuses to be copied is that
of the full model still. The sub-model would train it, at full size. So where there is an example,
the sub-model's forward is watched: every operator must find tensors of its own, every call a layer
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks

from submodel.errors import SubmodelError
from submodel.model.axes.keep import DispatchMode
from submodel.model.axes.reach import HeldItem, alias_problem, aliases, reach
from submodel.model.axes.record import storage

_T = TypeVar("_T")
ADVICE = (
    "Building copies what a module holds in attributes, containers, functions and weak references, "
    "but cannot follow this; keep what the layer needs in an attribute of its own"
)


def refuse_parts(module: nn.Module, small: nn.Module) -> None:
    """Raise if layers or parameters of the full model stand in the sub-model itself."""
    original_ids = {id(part) for part in (*module.modules(), *module.parameters())}
    for name, part in (*small.named_modules(), *small.named_parameters()):
        if id(part) in original_ids:
            raise SubmodelError(
                f"cannot build the sub-model: {name or 'the model'} is that of the full model, as "
                f"its {type(part).__name__} was not copied. It may define `__deepcopy__`, or come "
                "from `factory`, with itself in place of a copy"
            )


@contextmanager
def refuse_reads(module: nn.Module, small: nn.Module, running: Sequence[str]) -> Iterator[None]:
    """Raise when this block ends if a forward of ``small`` in here read or called ``module``.

    ``running`` are the paths of the layers that run at a time, the innermost last. Such a
    read is reported even if the forward failed, as it may be why.
    """
    reachable = list(reach(module))
    layers = {id(h.value): h for h in reachable if isinstance(h.value, nn.Module)}
    layers = {key: h for key, h in layers.items() if h.owner == "module"}
    foreign_reads: dict[str, tuple[str, object]] = {}  # what was read -> in which layer

    def note(one: HeldItem) -> None:
        foreign_reads.setdefault(
            one.path or "the model", (running[-1] if running else "", one.value)
        )

    def enter(layer: nn.Module, _: object) -> None:
        if id(layer) in layers:
            note(layers[id(layer)])

    before = _shared_tensors(small)
    hook = global_hooks.register_module_forward_pre_hook(enter)
    try:
        with Reads(_memories(module, reachable), note):
            yield
    finally:
        hook.remove()
        if foreign_reads:
            raise _refusal(small, foreign_reads)
    if shared_paths := [path for one, path in _shared_tensors(small).items() if one not in before]:
        raise SubmodelError(
            f"cannot build the sub-model: its forward keeps tensors in {', '.join(shared_paths)}, "
            "which all instances share: sub-models of other sizes would find them there. Keep them "
            "in an attribute of the module"
        )


@contextmanager
def refuse_aliases(module: nn.Module) -> Iterator[None]:
    """Raise if a forward of ``module`` in here reads a tensor that lies in a parameter's memory.

    In a copy it would not: neither cut nor trained with the parameter.
    """
    alias_reads: list[tuple[str, str]] = []
    second = aliases(module)
    with Reads(second, alias_reads.append, id) if second else nullcontext():
        yield
    for path, weight in alias_reads:
        raise SubmodelError(f"cannot build the sub-model: {alias_problem(path, weight)}")


def _refusal(small: nn.Module, foreign_reads: Mapping[str, tuple[str, object]]) -> SubmodelError:
    names, values = list(foreign_reads), {id(value) for _, value in foreign_reads.values()}
    where = foreign_reads[names[0]][0]
    way = next((h.path for h in reach(small) if id(h.value) in values), None)
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    route = f", which it reaches by {way}" if way else ""
    return SubmodelError(
        f"cannot build the sub-model: {where or 'the model'} "
        f"({type(small.get_submodule(where)).__name__}) reads {', '.join(names[:4])}{more} of the "
        f"full model{route}. {ADVICE}"
    )


def _memories(module: nn.Module, reachable: Sequence[HeldItem]) -> dict[int, HeldItem]:
    """The memory of the tensors that belong to a module; constants that code shares do not."""
    weights = {id(t) for t in (*module.parameters(), *module.buffers())}
    return {
        storage(h.value): h
        for h in reversed(reachable)  # the nearest name is the last one entered
        if isinstance(h.value, Tensor) and h.value.layout is torch.strided and h.value.numel()
        if h.direct or h.value.requires_grad or id(h.value) in weights
    }


def _shared_tensors(module: nn.Module) -> dict[int, str]:
    """The tensors in containers of classes and files, by their ids."""
    return {
        id(h.value): h.path
        for h in reach(module)
        if h.owner != "module" and isinstance(h.value, Tensor)
    }


class Reads(DispatchMode, Generic[_T]):
    """Calls ``note`` with what stands for a memory whenever an operator reads it.

    >>> table, reads = torch.ones(2), []
    >>> with Reads({storage(table): "table"}, reads.append):
    ...     _ = torch.ones(2) + table.view(1, 2)
    >>> reads
    ['table', 'table']
    """

    def __init__(
        self,
        memories: Mapping[int, _T],
        note: Callable[[_T], object],
        key: Callable[[Tensor], int] = storage,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memories, self._note, self._key = memories, note, key

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        for tensor in _tensors((*args, *(kwargs or {}).values())):
            if tensor.layout is torch.strided and (key := self._key(tensor)) in self._memories:
                self._note(self._memories[key])
        return func(*args, **(kwargs or {}))


def _tensors(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
