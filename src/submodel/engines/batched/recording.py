"""What a step of a stack comes to: the operators that run below autograd and vmap, in their order.

A recording is made while a step is computed. It holds numbers for tensors and no tensor but those
that came from elsewhere, such as a module's buffers; shapes and strides are part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode

from submodel.model.axes.keep import DispatchMode
from submodel.model.seeding import seeded

READ = torch.ops.aten._local_scalar_dense.default
"""The operator by which code asks for a value."""
_MARK = "_submodel_number"
_READERS: set[object] = {Tensor.tolist, Tensor.numpy, Tensor.data_ptr, Tensor.__array__}
"""Ways to a tensor's values that no operator shows."""


class UnrecordableError(Exception):
    """Why a step cannot be repeated by its operators alone, in words."""


@dataclass(frozen=True)
class Slot:
    """A tensor of a recording, by its number."""

    number: int


@dataclass(frozen=True)
class MemoryLayout:
    """How a tensor lies in the memory of another, or in its own."""

    root: int  # the number of the tensor whose memory it is
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # from the first value of the root


@dataclass(frozen=True)
class OperatorCall:
    """One operator. Tensors among the arguments are slots; None is an output that is no tensor."""

    operator: OpOverload | Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: tuple[int | None, ...]
    is_sequence: bool  # whether it returns several outputs, or one
    writes: tuple[int, ...] = ()  # roots of the memory that it changes
    answer: bool | float | None = None  # of an operator that reads a value: what it read


@dataclass(frozen=True)
class Recording:
    """A step: inputs have the first numbers."""

    inputs: int
    calls: tuple[OperatorCall, ...]
    layouts: Mapping[int, MemoryLayout]
    types: Mapping[int, torch.dtype]
    constants: Mapping[int, Tensor]  # tensors from elsewhere
    outputs: tuple[int, ...]


def record(compute: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor]) -> Recording:
    """Compute something, and note how.

    A value that is asked for, as by ``bool``, becomes part of the recording. What Python does
    beside the operators does not.

    Args:
        compute: what is computed from the inputs.
        inputs: the tensors that are others when the recording is used.

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
            raise UnrecordableError("it draws at random")
    numbers = tuple(recorder.number(result) for result in results)
    for tensor in (*inputs, *recorder.constants.values()):
        vars(tensor).pop(_MARK, None)
    calls, layouts = tuple(recorder.calls), recorder.layouts
    types, constants = recorder.types, recorder.constants
    return Recording(len(inputs), calls, layouts, types, constants, numbers)


class _NoHiddenReads(TorchFunctionMode):
    """Values that Python takes from a tensor are part of no recording."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Refuse what reads; everything else goes on."""
        if func in _READERS:
            raise UnrecordableError(f"its code reads values by {getattr(func, '__name__', func)}")
        return func(*args, **(kwargs or {}))


class _Recorder(DispatchMode):
    """Notes every operator that comes through."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[OperatorCall] = []
        self.layouts: dict[int, MemoryLayout] = {}
        self.types: dict[int, torch.dtype] = {}
        self.constants: dict[int, Tensor] = {}
        self._token = object()
        self._count = 0
        self._foreign = set(range(len(inputs)))  # what a step must not change
        for tensor in inputs:
            self._enter(tensor)

    def number(self, tensor: Tensor) -> int:
        """A tensor's number; one that nobody made in here is from elsewhere."""
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
        """A new number, as a view of ``source`` or with memory of its own."""
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
        """OperatorCall the operator, and note the call."""
        keywords = dict(kwargs or {})
        _refuse(func, args)
        sources = _tensors((args, keywords))
        slots = exchange(Tensor, lambda t: Slot(self.number(t)), (tuple(args), keywords))
        writes = self._writes(func, args, keywords)
        if func is torch.ops.aten.as_strided.default and self._is_foreign(args[0]):
            raise UnrecordableError(f"{func} says where in memory a tensor from elsewhere lies")
        result = func(*args, **keywords)
        is_sequence = isinstance(result, tuple | list)
        outputs = tuple(self._output(r, sources) for r in (result if is_sequence else [result]))
        answer = result if func is READ else None
        self.calls.append(
            OperatorCall(func, slots[0], slots[1], outputs, is_sequence, writes, answer)
        )
        return result

    def _output(self, result: Any, sources: Sequence[Tensor]) -> int | None:
        if not isinstance(result, Tensor):
            return None
        if any(result is source for source in sources):
            return None  # it has a number already
        source = next((s for s in sources if _memory(s) == _memory(result)), None)
        if source is not None and source.dtype != result.dtype:
            raise UnrecordableError("a view has another type")
        return self._enter(result, source)

    def _writes(
        self, func: OpOverload, args: Sequence[Any], keywords: Mapping[str, Any]
    ) -> tuple[int, ...]:
        """The roots that an operator changes."""
        if not func._schema.is_mutable:
            return ()
        roots = []
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else keywords.get(argument.name)
            tensors = _tensors([value])
            if any(map(self._is_foreign, tensors)):
                raise UnrecordableError(f"{func} changes a tensor from elsewhere")
            roots += [self.layouts[self.number(tensor)].root for tensor in tensors]
        return tuple(roots)


def _refuse(func: OpOverload, args: Sequence[Any]) -> None:
    """What would not be the same the next time."""
    tags = func.tags
    reads = torch.Tag.data_dependent_output in tags and func is not READ
    takes_rows = func is torch.ops.aten.index.Tensor and not any(
        isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8) for t in args[1]
    )
    if reads or (torch.Tag.dynamic_output_shape in tags and not takes_rows):
        raise UnrecordableError(f"what {func} returns depends on values")
    name = func._schema.name
    if "batch_norm" in name and "backward" not in name and _tensors(args[3:5]):
        raise UnrecordableError(f"{func} changes running statistics")  # it does not say so


def exchange(kind: type[Any], function: Callable[[Any], Any], value: Any) -> Any:
    """Arguments with everything of a kind in them replaced.

    Args:
        kind: of what is replaced.
        function: by what.
        value: arguments, perhaps lists or mappings of them.

    >>> exchange(int, str, [1, (2.0, {"a": 3})])
    ['1', (2.0, {'a': '3'})]
    """
    if isinstance(value, kind):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([exchange(kind, function, part) for part in value])
    if isinstance(value, dict):
        return {name: exchange(kind, function, part) for name, part in value.items()}
    return value


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in nested_parts(value) if isinstance(leaf, Tensor)]


def nested_parts(value: Any) -> list[Any]:
    """What is in nested sequences and mappings.

    >>> nested_parts([1, (2, {"a": 3})])
    [1, 2, 3]
    """
    parts: list[Any] = []
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, list | tuple | dict):
            parts += nested_parts(part)
        else:
            parts.append(part)
    return parts


def _memory(tensor: Tensor) -> int:
    memory: int = tensor.untyped_storage()._cdata
    return memory
