"""Recording of a step of a stack: the operators below autograd and vmap, in order of execution.

A recording is made while a step is computed. It refers to tensors by numbers, and contains only
tensors from outside, such as a module's buffers; shapes and strides are part of it.

A program replays a recorded step: the same operators on the same values in the same order, so that
results are equal bit for bit. Each view is taken once, from the tensor that owns the memory; unused
results are omitted, results that do not depend on inputs are computed once, and a tensor is freed
after its last use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from submodel.core.randomness import seeded
from submodel.model.axes.keep import DispatchMode
from submodel.model.axes.record import storage

READ = torch.ops.aten._local_scalar_dense.default
"""The operator that reads a value."""
_MARK = "_submodel_number"
_READERS: set[object] = {Tensor.tolist, Tensor.numpy, Tensor.data_ptr, Tensor.__array__}
"""Functions that read a tensor's values without an operator."""


class UnrecordableError(Exception):
    """Raised if a step cannot be replayed by its operators alone, with the reason."""


@dataclass(frozen=True)
class TensorRef:
    """A reference to a tensor of a recording by its number."""

    number: int


@dataclass(frozen=True)
class MemoryLayout:
    """The layout of a tensor in the memory of its root tensor, perhaps itself."""

    root: int  # the number of the tensor that owns the memory
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # from the first value of the root


@dataclass(frozen=True)
class OperatorCall:
    """One call of an operator.

    Tensors in the arguments are `TensorRef`; None stands for an output that is not a tensor.
    """

    operator: OpOverload | Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: tuple[int | None, ...]
    is_sequence: bool  # whether it returns a sequence of outputs
    writes: tuple[int, ...] = ()  # roots of the memory that it changes
    answer: bool | float | None = None  # the value read by `READ`


@dataclass(frozen=True)
class Recording:
    """A recorded step; inputs have the first numbers."""

    inputs: int
    calls: tuple[OperatorCall, ...]
    layouts: Mapping[int, MemoryLayout]
    types: Mapping[int, torch.dtype]
    constants: Mapping[int, Tensor]  # tensors from outside
    outputs: tuple[int, ...]


def record(compute: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> Recording:
    """Run a computation and record its operators.

    A value read by code, for example by ``bool``, becomes part of the recording; other Python code
    does not.

    >>> x = torch.ones(2)
    >>> [str(call.operator) for call in record(lambda: [x + x], [x]).calls]
    ['aten.add.Tensor']
    """
    recorder = _Recorder(inputs)
    with seeded(None):
        before = torch.random.get_rng_state()
        with _NoHiddenReads(), recorder:
            results = list(compute())
        if not torch.equal(before, torch.random.get_rng_state()):
            raise UnrecordableError("it draws random numbers")
    numbers = tuple(recorder.number(result) for result in results)
    for tensor in (*inputs, *recorder.constants.values()):
        vars(tensor).pop(_MARK, None)
    calls, layouts = tuple(recorder.calls), recorder.layouts
    types, constants = recorder.types, recorder.constants
    return Recording(len(inputs), calls, layouts, types, constants, numbers)


class _NoHiddenReads(TorchFunctionMode):
    """Refuses functions that read values of a tensor without an operator."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Refuse functions that read values; call all others."""
        if func in _READERS:
            raise UnrecordableError(f"its code reads values by {getattr(func, '__name__', func)}")
        return func(*args, **(kwargs or {}))


class _Recorder(DispatchMode):
    """Dispatch mode that records every operator."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.calls: list[OperatorCall] = []
        self.layouts: dict[int, MemoryLayout] = {}
        self.types: dict[int, torch.dtype] = {}
        self.constants: dict[int, Tensor] = {}
        self._token = object()
        self._count = 0
        self._foreign = set(range(len(inputs)))  # tensors that a step must not change
        for tensor in inputs:
            self._enter(tensor)

    def number(self, tensor: Tensor) -> int:
        """A tensor's number; a tensor without one comes from outside and becomes a constant."""
        mark = vars(tensor).get(_MARK)
        if mark is not None and mark[0] is self._token:
            number: int = mark[1]
            return number
        number = self._enter(tensor)
        self.constants[number] = tensor
        self._foreign.add(number)
        return number

    def _is_foreign(self, tensor: Tensor) -> bool:
        return self.layouts[self.number(tensor)].root in self._foreign

    def _enter(self, tensor: Tensor, source: Tensor | None = None) -> int:
        """Assign a number to a view of ``source``, or to a tensor with memory of its own."""
        number, root, offset = self._count, self._count, 0
        self._count += 1
        vars(tensor)[_MARK] = self._token, number
        if source is not None:
            above = self.layouts[self.number(source)]
            root = above.root
            offset = above.offset + int(tensor.storage_offset()) - int(source.storage_offset())
        size, stride = tuple(tensor.shape), tuple(tensor.stride())
        self.layouts[number] = MemoryLayout(root, size, stride, offset)
        self.types[number] = tensor.dtype
        return number

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, and record the call."""
        keywords = dict(kwargs or {})
        _refuse(func, args)
        sources = _tensors((args, keywords))
        refs = tree_map_only(Tensor, lambda t: TensorRef(self.number(t)), (tuple(args), keywords))
        writes = self._writes(func, args, keywords)
        if func is torch.ops.aten.as_strided.default and self._is_foreign(args[0]):
            raise UnrecordableError(f"{func} depends on the memory layout of an outside tensor")
        result = func(*args, **keywords)
        is_sequence = isinstance(result, tuple | list)
        outputs = tuple(self._output(r, sources) for r in (result if is_sequence else [result]))
        answer = result if func is READ else None
        self.calls.append(
            OperatorCall(func, refs[0], refs[1], outputs, is_sequence, writes, answer)
        )
        return result

    def _output(self, result: Any, sources: Sequence[Tensor]) -> int | None:
        if not isinstance(result, Tensor):
            return None
        if any(result is source for source in sources):
            return None  # it has a number already
        source = next((s for s in sources if storage(s) == storage(result)), None)
        if source is not None and source.dtype != result.dtype:
            raise UnrecordableError("a view has another type")
        return self._enter(result, source)

    def _writes(
        self, func: OpOverload, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """The roots of the memory that an operator changes."""
        if not func._schema.is_mutable:
            return ()
        roots = []
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else keywords.get(argument.name)
            tensors = _tensors([value])
            if any(map(self._is_foreign, tensors)):
                raise UnrecordableError(f"{func} changes an outside tensor")
            roots += [self.layouts[self.number(tensor)].root for tensor in tensors]
        return tuple(roots)


def _refuse(func: OpOverload, args: Sequence[Any]) -> None:
    """Raise for operators that may differ in the next step."""
    tags = func.tags
    reads = torch.Tag.data_dependent_output in tags and func is not READ
    takes_rows = func is torch.ops.aten.index.Tensor and not any(
        isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8) for t in args[1]
    )
    if reads or (torch.Tag.dynamic_output_shape in tags and not takes_rows):
        raise UnrecordableError(f"the result of {func} depends on values")
    name = func._schema.name
    if "batch_norm" in name and "backward" not in name and _tensors(args[3:5]):
        raise UnrecordableError(f"{func} changes running statistics")  # its schema omits this


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


Program = Callable[[Sequence[Tensor]], list[Tensor]]
"""Inputs -> outputs."""
_MOST_KEPT = 1 << 16
"""The largest number of values of a tensor that is computed once and kept."""
DIRECT_CALLS: dict[object, Callable[..., Any]] = {}
"""Operators that are Python functions, with the function, whose call avoids torch's dispatcher."""
_VIEW = torch.ops.aten.as_strided.default
_VALUE_FREE = (torch.ops.aten.ones_like.default, torch.ops.aten.zeros_like.default)
"""Operators that depend on the shape of a tensor, not on its values."""


class ReplayMismatchError(Exception):
    """Raised if a read value differs from the recorded one."""


Fuse = Callable[[Sequence[OperatorCall], Recording, Sequence[int]], list[OperatorCall]]
"""(calls, their recording, the numbers of its results) -> the calls, some of them fused."""


def make_program(recording: Recording, fuse: Fuse | None = None) -> Program:
    """A function that replays a recorded step, without autograd.

    >>> x = torch.ones(2)
    >>> make_program(record(lambda: [x.view(2, 1).view(2) + 1], [x]))([torch.zeros(2)])
    [tensor([1., 1.])]
    """
    return _Writer(recording).program(fuse)


class _Writer:
    """Generates the code of the program, as a loop over calls would be slow for small operators."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._names: dict[str, Any] = {"view": torch.as_strided, "Mismatch": ReplayMismatchError}
        self._constants = dict(recording.constants)
        self._equal: dict[int, int] = {}  # number of a view -> number of an earlier equal view
        self._changing_roots = {root for call in recording.calls for root in call.writes}

    def program(self, fuse: Fuse | None) -> Program:
        """Generate the function."""
        calls = self._drop_unused(self._keep_constants(self._root_views()))
        results = [self._first(number) for number in self._recording.outputs]
        if fuse is not None:
            calls = self._drop_unused(fuse(calls, self._recording, results))
        last = {number: place for place, call in enumerate(calls) for number in _tensors_of(call)}
        lines = ["def program(inputs):"]
        if self._recording.inputs:
            lines.append(
                f"    [{', '.join(f'v{i}' for i in range(self._recording.inputs))}] = inputs"
            )
        for place, call in enumerate(calls):
            lines.append(f"    {self._line(call)}")
            for number in dict.fromkeys(_tensors_of(call)):
                stays = number in results or number in self._constants
                if last[number] == place and not stays:
                    lines.append(f"    del v{number}")
        lines.append(f"    return [{', '.join(f'v{number}' for number in results)}]")
        names = self._names | {f"v{n}": tensor for n, tensor in self._constants.items()}
        exec("\n".join(lines), names)
        program: Program = names["program"]
        return program

    def _first(self, number: int) -> int:
        return self._equal.get(number, number)

    def _root_views(self) -> list[OperatorCall]:
        """The calls with every view taken once, from its root."""
        calls: list[OperatorCall] = []
        layouts, views = self._recording.layouts, dict[MemoryLayout, int]()
        for call in self._recording.calls:
            if not call.writes and any(
                layouts[number].root != number for number in tensors_made(call)
            ):
                for number in tensors_made(call):
                    layout = layouts[number]
                    whole = replace(layouts[layout.root], root=layout.root)
                    first = layout.root if layout == whole else views.setdefault(layout, number)
                    self._equal[number] = first
                    if first == number:
                        calls.append(_view_call(layout, number))
                continue
            arguments, keywords = tree_map_only(
                TensorRef,
                lambda s: TensorRef(self._first(s.number)),
                (call.arguments, dict(call.keywords)),
            )
            calls.append(replace(call, arguments=arguments, keywords=keywords))
        return calls

    def _keep_constants(self, calls: Sequence[OperatorCall]) -> list[OperatorCall]:
        """The calls that depend on inputs; small results of the others become constants."""
        layouts, rest = self._recording.layouts, []
        for call in calls:
            if (
                (
                    call.operator in _VALUE_FREE
                    or all(number in self._constants for number in tensors_read(call))
                )
                and not any(layouts[n].root in self._changing_roots for n in _tensors_of(call))
                and all(math.prod(layouts[n].size) <= _MOST_KEPT for n in tensors_made(call))
                and tensors_made(call)
            ):
                self._keep(call)
            else:
                rest.append(call)
        return rest

    def _keep(self, call: OperatorCall) -> None:
        """Compute the results of a call as constants."""
        arguments, keywords = tree_map_only(
            TensorRef, lambda ref: self._sample(ref.number), (call.arguments, dict(call.keywords))
        )
        if call.operator is _VIEW:
            arguments = (*arguments[:3], arguments[0].storage_offset() + arguments[3])
        result = call.operator(*arguments, **keywords)
        for number, part in zip(
            call.outputs, result if call.is_sequence else [result], strict=True
        ):
            if number is not None:
                self._constants[number] = part

    def _sample(self, number: int) -> Tensor:
        """A constant, or an empty tensor of the recorded shape and type."""
        if number in self._constants:
            return self._constants[number]
        layout, kind = self._recording.layouts[number], self._recording.types[number]
        return torch.empty_strided(layout.size, layout.stride, dtype=kind)

    def _drop_unused(self, calls: Sequence[OperatorCall]) -> list[OperatorCall]:
        """The calls whose results are used, that change a tensor, or that read a value."""
        live_numbers = {self._first(number) for number in self._recording.outputs}
        rest = []
        for call in reversed(calls):
            if (
                call.writes
                or call.answer is not None
                or live_numbers.intersection(tensors_made(call))
            ):
                rest.append(call)
                live_numbers.update(tensors_read(call))
        return rest[::-1]

    def _line(self, call: OperatorCall) -> str:
        """A call as a line of code."""
        arguments = [self._text(value) for value in call.arguments]
        if call.answer is not None:
            return f"if {arguments[0]}.item() != {self._bind(call.answer)}: raise Mismatch"
        if call.operator is _VIEW:  # offsets are relative to the root's
            tensor, size, stride, offset = arguments
            start = f", {tensor}.storage_offset() + {offset}" if call.arguments[3] else ""
            line = f"view({tensor}, {size}, {stride}{start})"
        else:
            arguments += [f"{name}={self._text(value)}" for name, value in call.keywords.items()]
            operator = call.operator
            function = DIRECT_CALLS.get(operator, getattr(operator, "_op", operator))
            line = f"{self._bind(function)}({', '.join(arguments)})"
        if not tensors_made(call):
            return line
        targets = ["_" if number is None else f"v{number}" for number in call.outputs]
        return f"[{', '.join(targets)}] = {line}" if call.is_sequence else f"{targets[0]} = {line}"

    def _text(self, value: Any) -> str:
        """An argument as code."""
        if isinstance(value, TensorRef):
            return f"v{value.number}"
        if any(isinstance(leaf, TensorRef) for leaf in tree_leaves([value])):
            return f"[{', '.join(map(self._text, value))}]"
        return self._bind(value)

    def _bind(self, value: Any) -> str:
        """Bind a value to a new name."""
        name = f"c{len(self._names)}"
        self._names[name] = value
        return name


def _view_call(layout: MemoryLayout, number: int) -> OperatorCall:
    """A call of the operator that makes any view."""
    place = TensorRef(layout.root), layout.size, layout.stride, layout.offset
    return OperatorCall(_VIEW, place, {}, (number,), False)


def tensors_read(call: OperatorCall) -> list[int]:
    """The tensors that a call reads."""
    parts = tree_leaves((call.arguments, dict(call.keywords)))
    return [part.number for part in parts if isinstance(part, TensorRef)]


def tensors_made(call: OperatorCall) -> list[int]:
    """The tensors that a call makes."""
    return [number for number in call.outputs if number is not None]


def _tensors_of(call: OperatorCall) -> list[int]:
    return [*tensors_read(call), *tensors_made(call)]
