"""Map-style datasets of torch: read once, item by item, into tensors; large ones into a file.

Items are read once because who has which labels must be known before the first round, and because
a resumed run must find the very bytes that it was trained on. What is drawn at random for every use
of an example belongs in `data.augment`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from submodel.errors import DataError

IN_MEMORY = 1 << 29
"""Bytes that are held in memory; more are written to a file, which is read as it is needed."""


def is_item_dataset(part: object) -> bool:
    """Whether this is a map-style dataset: a length, and items by number.

    >>> is_item_dataset(torch.utils.data.TensorDataset(torch.ones(2))), is_item_dataset([1, 2])
    (True, False)
    """
    plain = isinstance(part, tuple | list | Mapping | Tensor | str | bytes | np.ndarray)
    return not plain and hasattr(part, "__getitem__") and hasattr(part, "__len__")


def is_hub_part(part: object) -> bool:
    """Whether this is a ``datasets.Dataset`` with columns of its own, not as models take them.

    Columns of the names ``labels`` and ``input_ids`` are given to the model by name, item by item.
    """
    columns = getattr(part, "column_names", None)
    if type(part).__module__.partition(".")[0] != "datasets" or not isinstance(columns, list):
        return False
    return not {"labels", "input_ids"} & set(columns)


def read_items(name: str, part: Any) -> Any:
    """All items of a dataset, as a pair of inputs and targets or as a dictionary of tensors.

    >>> pairs = torch.utils.data.TensorDataset(torch.ones(3, 2), torch.tensor([0, 1, 0]))
    >>> [tensor.shape for tensor in read_items("training", pairs)]
    [torch.Size([3, 2]), torch.Size([3])]
    """
    total = len(part)
    if not total:
        raise DataError(f"{name} data: the dataset has no items")
    table: dict[str, Any] = {}
    shape_of_items: type = tuple
    for number in range(total):
        try:
            item = part[number]
        except Exception as error:  # whatever the dataset's own code raises
            raise DataError(
                f"{name} data: item {number} cannot be read: {type(error).__name__}: {error}"
            ) from error
        values, kind = _values(name, number, item)
        if not number:
            shape_of_items = kind
            size = total * sum(tensor.numel() * tensor.element_size() for tensor in values.values())
            table = {key: _room(tensor, total, size) for key, tensor in values.items()}
        _write(name, number, values, table)
    tensors = {key: torch.from_numpy(array) for key, array in table.items()}
    if shape_of_items is dict:
        return tensors
    *inputs, targets = tensors.values()
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), targets


def _values(name: str, number: int, item: object) -> tuple[dict[str, Tensor], type]:
    """The tensors of an item by name; the last of a sequence is the target."""
    if isinstance(item, Mapping):
        return {str(key): torch.as_tensor(value) for key, value in item.items()}, dict
    if isinstance(item, Sequence) and len(item) == 2 and isinstance(item[0], Mapping):
        inputs_by_name = {str(key): torch.as_tensor(value) for key, value in item[0].items()}
        return inputs_by_name | {"labels": torch.as_tensor(item[1])}, dict
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) < 2:
        raise DataError(
            f"{name} data: item {number} is a {type(item).__name__}; want (input, target) or a "
            "dictionary with 'labels'"
        )
    try:
        return {str(place): torch.as_tensor(value) for place, value in enumerate(item)}, tuple
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name} data: item {number} holds what is no tensor ({error}); turn it into one in "
            "the dataset, as by a transform"
        ) from None


def _room(tensor: Tensor, total: int, size: int) -> np.ndarray[Any, Any]:
    """An array for all items, in a file that nobody else sees where they are large."""
    kind = tensor.numpy().dtype
    shape = (total, *tensor.shape)
    if size <= IN_MEMORY:
        return np.empty(shape, kind)
    descriptor, path = tempfile.mkstemp(prefix="submodel-", suffix=".items")
    os.close(descriptor)
    array = np.memmap(path, kind, "w+", shape=shape)
    Path(path).unlink()  # it goes when the array does
    return array


def _write(
    name: str, number: int, values: Mapping[str, Tensor], table: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    for key, array in table.items():
        if key not in values or tuple(values[key].shape) != array.shape[1:]:
            shape = tuple(values[key].shape) if key in values else "nothing"
            raise DataError(
                f"{name} data: item {number} has {shape} where item 0 has {array.shape[1:]}; items "
                "must be of one shape: pad or resize them in the dataset"
            )
        array[number] = values[key].numpy()
