"""Checks of a sub-model: the cut must fit, the outputs must agree, the full model must not be read.

A layer stored in a global registry, in its class, or in an object that cannot be copied still
belongs to the full model, and the sub-model would train it at full size. So with an example input
the sub-model's forward pass is watched: all its operators must read its own tensors, and all calls
must go to its own layers. Its outputs must have the full model's shapes: a constant in a view, such
as `x.view(-1, 12, 2)`, can turn a change of width into a change of the batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as global_hooks

from submodel.core.errors import ConfigError, SubmodelError, refuse
from submodel.model.axes import CLASSES, Axes
from submodel.model.axes.forward import (
    ForwardError,
    innermost,
    isolate,
    outputs_of,
    run,
    weights_of,
)
from submodel.model.axes.keep import DispatchMode
from submodel.model.axes.layout import Units
from submodel.model.axes.reach import HeldItem, alias_problem, copied_aliases, reach
from submodel.model.axes.record import failing_line, flat_tensors, storage
from submodel.model.axes.verify import Outputs
from submodel.model.cut import Cut, UnitCut
from submodel.model.inputs import Inputs

_T = TypeVar("_T")
ADVICE = (
    "Building copies the attributes of a module, with containers, functions and weak references in "
    "them, but cannot follow this; store the layer or tensor in an attribute of the module"
)


def refuse_parts(module: nn.Module, small: nn.Module) -> None:
    """Raise if the sub-model contains layers or parameters of the full model."""
    original_ids = {id(part) for part in (*module.modules(), *module.parameters())}
    for name, part in (*small.named_modules(), *small.named_parameters()):
        if id(part) in original_ids:
            raise SubmodelError(
                f"cannot build the sub-model: {name or 'the model'} belongs to the full model, as "
                f"its {type(part).__name__} was not copied. Its `__deepcopy__`, or `factory`, may "
                "return the original in place of a copy"
            )


@contextmanager
def refuse_reads(module: nn.Module, small: nn.Module, running: Sequence[str]) -> Iterator[None]:
    """Raise at the end of the block if a forward pass of ``small`` in it read or called ``module``.

    ``running`` contains the paths of the layers that run, the innermost last. A read is reported
    even if the forward pass failed, as it may be the cause.
    """
    reachable = list(reach(module))
    layers = {id(h.value): h for h in reachable if isinstance(h.value, nn.Module)}
    layers = {key: h for key, h in layers.items() if h.owner == "module"}
    foreign_reads: dict[str, tuple[str, object]] = {}  # path read -> reading layer, value

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
            f"cannot build the sub-model: its forward stores tensors in {', '.join(shared_paths)}, "
            "which all instances share, so sub-models of other sizes would read them. Store them "
            "in an attribute of the module"
        )


@contextmanager
def refuse_aliases(module: nn.Module, running: nn.Module) -> Iterator[None]:
    """Raise if ``running``, a copy of ``module``, reads a tensor that shares a parameter's memory.

    The memory is shared in ``module`` alone: in the copy the tensor is neither cut nor trained.
    """
    alias_reads: list[tuple[str, str, object]] = []
    second = copied_aliases(module, running)
    with Reads(second, alias_reads.append, id) if second else nullcontext():
        yield
    for path, weight, _ in alias_reads:
        raise SubmodelError(f"cannot build the sub-model: {alias_problem(path, weight)}")


def _refusal(small: nn.Module, foreign_reads: Mapping[str, tuple[str, object]]) -> SubmodelError:
    names, values = list(foreign_reads), {id(value) for _, value in foreign_reads.values()}
    where = foreign_reads[names[0]][0]
    path = next((h.path for h in reach(small) if id(h.value) in values), None)
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    route = f", which it reaches by {path}" if path else ""
    return SubmodelError(
        f"cannot build the sub-model: {where or 'the model'} "
        f"({type(small.get_submodule(where)).__name__}) reads {', '.join(names[:4])}{more} of the "
        f"full model{route}. {ADVICE}"
    )


def _memories(module: nn.Module, reachable: Sequence[HeldItem]) -> dict[int, HeldItem]:
    """The memory of the tensors that belong to a module, without constants that code shares."""
    weights = {id(t) for t in (*module.parameters(), *module.buffers())}
    return {
        storage(h.value): h
        for h in reversed(reachable)  # the nearest path overwrites the others
        if isinstance(h.value, Tensor) and h.value.layout is torch.strided and h.value.numel()
        if h.direct or h.value.requires_grad or id(h.value) in weights
    }


def _shared_tensors(module: nn.Module) -> dict[int, str]:
    """The tensors in containers of classes and Python files, by their ids."""
    return {
        id(h.value): h.path
        for h in reach(module)
        if h.owner != "module" and isinstance(h.value, Tensor)
    }


class Reads(DispatchMode, Generic[_T]):
    """Calls ``note`` with the value of ``memories`` whenever an operator reads that memory.

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
        super().__init__()
        self._memories, self._note, self._key = memories, note, key

    def _see(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Any:
        for tensor in flat_tensors((*args, *keywords.values())):
            if tensor.layout is torch.strided and (key := self._key(tensor)) in self._memories:
                self._note(self._memories[key])
        return super()._see(func, args, keywords)


class OutputCheck:
    """Runs sub-models of one model on an example; the full model runs once for all of them."""

    def __init__(
        self, module: nn.Module, example_inputs: Inputs, outputs: Outputs | None = None
    ) -> None:
        self._module, self._inputs, self._outputs = module, example_inputs, outputs

    @cached_property
    def _full(self) -> list[tuple[int, ...]]:
        try:
            return _shapes(self._module, self._inputs, self._outputs)
        except _FailedInsideError as problem:
            raise problem.error from problem.__cause__

    def check(self, small: nn.Module, cut: Cut) -> None:
        """Raise unless ``small`` runs and its outputs have the shapes of the full model's.

        If the classes are cut, a dimension of all classes may shrink to the kept ones. ``small``
        must not read the full model.
        """
        allowed_changes = set()
        if isinstance(cut, UnitCut) and CLASSES in cut.units:
            allowed_changes.add((cut.axes.sizes[CLASSES], len(cut.units[CLASSES])))
        full = self._full
        try:
            cut_shapes = _shapes(small, self._inputs, self._outputs, self._module)
        except _FailedInsideError as problem:
            path, cause = problem.path, problem.__cause__ or problem.error
            line = failing_line(cause)
            raise SubmodelError(
                f"cannot build the sub-model: {path or 'the model'} "
                f"({type(small.get_submodule(path)).__name__}) does not run with the cut "
                f"tensors: {cause}{f', at {line}' if line else ''}. A size is computed or "
                "written out there; make it an attribute or read it from a shape, register "
                "`resizes`, give `factory` or `resize`, or keep the axis whole"
            ) from problem.__cause__
        for before, after in zip(full, cut_shapes, strict=True):
            same = len(before) == len(after) and all(
                b == a or (b, a) in allowed_changes for b, a in zip(before, after, strict=True)
            )
            if not same:
                raise SubmodelError(
                    f"cannot build the sub-model: it has an output of shape {after}, the full "
                    f"model {before}. Either a view has a constant size, which turns the change of "
                    "width into another batch size; or a hidden width is part of the outputs: "
                    "select the outputs that count with `outputs`"
                )


class _FailedInsideError(Exception):
    """An error in a forward pass with the path of the innermost running module."""

    def __init__(self, path: str, error: ForwardError) -> None:
        self.path, self.error = path, error
        super().__init__(path)


def _shapes(
    module: nn.Module, inputs: Inputs, outputs: Outputs | None, original: nn.Module | None = None
) -> list[tuple[int, ...]]:
    """The shapes of the outputs of a forward pass, which must not read ``original``."""
    running: list[str] = []
    with isolate(module) as copied, ExitStack() as hooks:
        if original is None:
            hooks.enter_context(refuse_aliases(module, copied))
        else:
            hooks.enter_context(refuse_reads(original, copied, running))
        for path, layer in copied.named_modules():

            def enter(*_: object, path: str = path) -> None:
                running.append(path)

            def leave(*_: object) -> None:
                running.pop()

            hooks.callback(layer.register_forward_pre_hook(enter, prepend=True).remove)
            hooks.callback(layer.register_forward_hook(leave, always_call=True).remove)
        try:
            result = run(copied, inputs)
        except ForwardError as problem:
            cause = problem.__cause__ or problem
            path, _ = innermost(copied, cause.__traceback__)
            raise _FailedInsideError(path, problem) from problem.__cause__
    return [tuple(tensor.shape) for tensor in outputs_of(result, outputs)]


def check_cut(module: object, axes: Axes, units: Units) -> None:
    """Raise unless the axes fit this module and the units fit the axes."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"module: a {type(module).__name__} is not an nn.Module")
    check_axes(module, axes)
    refuse([*_misfits(axes, units)])


def check_axes(module: nn.Module, axes: Axes) -> None:
    """Raise unless the axes fit the tensors of this module."""
    shapes = {name: tuple(tensor.shape) for name, tensor in weights_of(module).items()}
    for name, layouts in axes.layouts.items():
        shape = tuple(layout.size for layout in layouts)
        is_missing = name not in shapes and any(layout.axes() for layout in layouts)
        if is_missing or shapes.get(name, shape) != shape:
            actual = f"has {shapes[name]}" if name in shapes else "has no such tensor"
            raise ConfigError(
                f"axes: they belong to another model: they give {name} the shape {shape}, and the "
                f"model {actual}"
            )


def _misfits(axes: Axes, units: Units) -> Iterator[str]:
    for axis, positions in units.items():
        size = axes.sizes.get(axis)
        if size is None:
            yield f"units: {axis!r} is not an axis; there are {', '.join(axes.sizes) or 'none'}"
        elif (
            not isinstance(positions, np.ndarray)
            or positions.ndim != 1
            or positions.dtype.kind != "i"
        ):
            is_mask = isinstance(positions, np.ndarray) and positions.dtype == np.bool_
            more = "; np.flatnonzero(mask) converts a mask" if is_mask else ""
            yield f"units[{axis!r}]: expected positions, a NumPy array of integers{more}"
        elif not len(positions) or positions.min() < 0 or positions.max() >= size:
            expected = f"expected at least one position from 0 to {size - 1}"
            yield f"units[{axis!r}]: {expected}, not {positions.tolist()}"
        elif len(np.unique(positions)) < len(positions):
            yield f"units[{axis!r}]: a unit occurs twice: {positions.tolist()}"
