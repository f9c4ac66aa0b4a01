"""The inputs of a model: one tensor, several, or named ones, all with a row per example."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""One tensor, the positional arguments of a forward, or its keyword arguments."""


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Replace every leaf of nested mappings, lists and tuples.

    >>> map_leaves(lambda leaf: leaf + 1, (1, {"a": [2]}))
    (2, {'a': [3]})
    """
    if isinstance(value, Mapping):
        return {name: map_leaves(function, inner) for name, inner in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):  # no named tuple
        return type(value)([map_leaves(function, inner) for inner in value])
    return function(value)


def as_tensors(value: Any) -> Any:
    """Replace every NumPy array in nested tuples and dictionaries by a tensor.

    Arrays of float64, NumPy's default, become float32, torch's default. An array of a type that
    torch lacks stays unchanged.

    >>> as_tensors((np.ones(2), {"a": np.arange(2)}))
    (tensor([1., 1.]), {'a': tensor([0, 1])})
    """

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        array = leaf.astype(np.float32) if leaf.dtype == np.float64 else leaf
        try:
            with warnings.catch_warnings():  # read-only arrays are never written here
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
                return torch.from_numpy(np.ascontiguousarray(array))
        except TypeError:
            return leaf

    return map_leaves(convert, value)


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """The positional and the keyword arguments of a call.

    >>> arguments({"input_ids": 1}), arguments((1, 2))
    (((), {'input_ids': 1}), ((1, 2), {}))
    """
    if isinstance(inputs, Mapping):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def call(module: nn.Module, inputs: Inputs) -> Any:
    """Call the module with the inputs."""
    positional, by_name = arguments(inputs)
    return module(*positional, **by_name)


def columns(inputs: Inputs) -> dict[str, Tensor]:
    """The tensors by name: "" for a single one, "0", "1", ... for positional ones.

    >>> list(columns((torch.ones(1), torch.ones(1))))
    ['0', '1']
    """
    if isinstance(inputs, Tensor):
        return {"": inputs}
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {str(place): tensor for place, tensor in enumerate(inputs)}


def from_columns(tensors: Mapping[str, Tensor]) -> Inputs:
    """The inverse of `columns`."""
    if tensors.keys() == {""}:
        return tensors[""]
    if all(name.isdigit() for name in tensors):
        return tuple(tensors[str(place)] for place in range(len(tensors)))
    return dict(tensors)


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The inputs with every tensor replaced."""
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {name: function(tensor) for name, tensor in inputs.items()}
    return tuple(function(tensor) for tensor in inputs)


def first_column(inputs: Inputs) -> Tensor:
    """The first tensor, which represents all where one shape, type or device is needed."""
    return next(iter(columns(inputs).values()))


def count_rows(inputs: Inputs) -> int:
    """The number of examples."""
    return len(first_column(inputs))


def take_rows(inputs: Inputs, rows: Tensor | slice) -> Inputs:
    """The inputs of some examples.

    >>> take_rows({"a": torch.arange(3)}, torch.tensor([2, 0]))
    {'a': tensor([2, 0])}
    """
    return map_inputs(lambda tensor: tensor[rows], inputs)


def split_rows(inputs: Inputs, size: int) -> list[Inputs]:
    """Split the inputs into views of at most ``size`` examples.

    >>> [count_rows(part) for part in split_rows((torch.zeros(5), torch.zeros(5)), 2)]
    [2, 2, 1]
    """
    if isinstance(inputs, Tensor):
        return list(torch.split(inputs, size))
    total = count_rows(inputs)
    return [take_rows(inputs, slice(start, start + size)) for start in range(0, total, size)]
