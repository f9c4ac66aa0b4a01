"""Values that are made when an operator asks for them: a model runs with others than its own.

A large model fills the memory as it is. While it runs with trial values, its parameters have their
shapes and types and no memory; each operator that reads one gets the values of that one, which are
gone after it. What cannot be done like this (parameters that a forward writes to, or reads past
torch's operators) is noticed, and the caller gives the module all its values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from submodel.model.axes.keep import DispatchMode


class ChangedValues(Mapping[str, Tensor]):
    """Values with a change, made when they are asked for.

    Args:
        values: by name.
        change: of a value, which it may not write to.

    >>> ChangedValues({"w": torch.ones(2)}, lambda name, value: value + 1)["w"]
    tensor([2., 2.])
    """

    def __init__(
        self, values: Mapping[str, Tensor], change: Callable[[str, Tensor], Tensor]
    ) -> None:
        self._values, self._change = values, change

    def __getitem__(self, name: str) -> Tensor:
        return self._change(name, self._values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class OnDemand(DispatchMode):
    """In here the parameters of a module have other values, each while an operator reads it.

    Args:
        parameters: by all their names.
        values: of every parameter.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> with torch.no_grad(), OnDemand({"weight": net.weight}, {"weight": torch.ones(1, 2)}):
    ...     net(torch.ones(2))
    tensor([2.])
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._parameters, self._values = parameters, values
        self._names: dict[int, tuple[str, tuple[int, ...]]] = {}
        self._rooms: list[Tensor] = []
        self._original_data: list[tuple[nn.Parameter, Tensor]] = []

    def __enter__(self) -> OnDemand:
        for name, parameter in self._parameters.items():
            if any(parameter is other for other, _ in self._original_data):
                continue  # under another name
            self._original_data.append((parameter, parameter.data))
            value_type = self._values[name].dtype
            room = torch.full((), torch.nan, dtype=value_type, device=parameter.device)
            self._rooms.append(room)
            self._names[_memory(room)] = (name, tuple(parameter.shape))
            parameter.data = room.expand(parameter.shape)
        return super().__enter__()  # type: ignore[no-any-return, no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for parameter, data in self._original_data:
            parameter.data = data

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        if func is torch.ops.aten.detach.default:
            return func(*args, **keywords)  # whoever keeps it keeps no values; reading it fills it
        if func._schema.is_mutable:
            for place, argument in enumerate(func._schema.arguments):
                value = args[place] if place < len(args) else keywords.get(argument.name)
                if argument.is_write and any(self._is_room(item) for item in _items(value)):
                    raise NotOnDemandError(f"{func} writes to a parameter")
        return func(
            *map(self._with_values, args), **{k: self._with_values(v) for k, v in keywords.items()}
        )

    def _is_room(self, value: Any) -> bool:
        is_plain = isinstance(value, Tensor) and value.layout is torch.strided
        return is_plain and _memory(value) in self._names

    def _with_values(self, value: Any) -> Any:
        """The argument of an operator, with values where it has none."""
        if isinstance(value, list | tuple):
            return type(value)(map(self._with_values, value))
        if not self._is_room(value):
            return value
        name, shape = self._names[_memory(value)]
        if tuple(value.shape) != shape:
            raise NotOnDemandError(f"{name} is read as another shape")
        return self._values[name]


class NotOnDemandError(RuntimeError):
    """A model that needs all its values at once."""


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
