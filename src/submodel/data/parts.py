"""Parts of the data as users give them: pairs, dictionaries of tensors or arrays, torch datasets.

Hugging Face's models take a dictionary with ``labels``. For causal language models the labels are
the tokens themselves, and the model compares each with the logits of the place before; here
targets are at the place of their logits.

Map-style datasets of torch are read once, item by item, because the clients' labels must be known
before the first round, and because a resumed run must find the same bytes again. Random changes
for every use of an example belong in `data.augment`.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from submodel.core.errors import DataError
from submodel.model.inputs import Inputs, as_tensors, columns, map_inputs

_MOST_CLASSES = 10_000_000  # larger numbers are not labels: identifiers, seconds, prices
IN_MEMORY = 1 << 29
"""Bytes that are held in memory; larger data is written to a file and read when needed."""
NO_TARGET = -100
"""A target to ignore, as in torch's cross-entropy and Hugging Face's models."""
_LABELS, _TOKENS, _MASK = "labels", "input_ids", "attention_mask"


def check_tensor(name: str, what: str, tensor: object) -> Tensor:
    """Return the tensor if it holds finite numbers, one entry per example, on the CPU."""
    if not isinstance(tensor, Tensor):
        kind = f"{type(tensor).__name__} of {getattr(tensor, 'dtype', '')}".removesuffix(" of ")
        raise DataError(
            f"{name} data: {what} are a {kind}; give tensors or arrays of numbers, by "
            "torch.tensor(...) or numpy.array(...)"
        )
    if tensor.layout is not torch.strided:
        raise DataError(f"{name} data: {what} are {tensor.layout}; give dense tensors, .to_dense()")
    if tensor.device.type != "cpu":
        raise DataError(
            f"{name} data: {what} are on {tensor.device}; give them on the cpu: engine.device sets "
            "the device for training"
        )
    if tensor.dim() == 0:
        raise DataError(f"{name} data: {what} are a single number; want one entry per example")
    if not _is_finite(tensor):
        wrong = (~tensor.isfinite()).flatten(1 if tensor.dim() > 1 else 0)
        raise DataError(
            f"{name} data: {what} of example {int(wrong.nonzero()[0, 0])} are not finite"
        )
    return tensor.detach()


def _is_finite(tensor: Tensor) -> bool:
    """Return whether all numbers are finite: the extremes suffice, as both propagate NaN."""
    if tensor.is_complex():
        return _is_finite(torch.view_as_real(tensor.resolve_conj()))
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return all(math.isfinite(float(extreme)) for extreme in torch.aminmax(tensor.detach()))


def are_labels(y: Tensor) -> bool:
    """Return whether targets are class labels: one whole number per example."""
    return y.dim() == 1 and not y.is_floating_point() and not y.is_complex()


def count_classes(train: Tensor, test: Tensor) -> int:
    """Return the number of classes of the labels."""
    if min(int(train.min()), int(test.min())) < 0:
        raise DataError("class labels must be 0, 1, 2, ...; a negative one was given")
    classes = max(int(train.max()), int(test.max())) + 1
    if classes > _MOST_CLASSES:
        raise DataError(
            f"class labels must be 0, 1, 2, ...; {classes - 1:,} was given, for "
            f"{len(torch.unique(train)):,} different labels; number them, by "
            "torch.unique(y, return_inverse=True)[1]"
        )
    return classes


def is_item_dataset(part: object) -> bool:
    """Return whether an object is a map-style dataset: with a length, and items by number.

    >>> is_item_dataset(torch.utils.data.TensorDataset(torch.ones(2))), is_item_dataset([1, 2])
    (True, False)
    """
    plain = isinstance(part, tuple | list | Mapping | Tensor | str | bytes | np.ndarray)
    return not plain and hasattr(part, "__getitem__") and hasattr(part, "__len__")


def is_hub_part(part: object) -> bool:
    """Return whether an object is a ``datasets.Dataset`` that needs conversion.

    One with columns named ``labels`` or ``input_ids`` is given to the model by name, item by item.
    """
    columns = getattr(part, "column_names", None)
    if type(part).__module__.partition(".")[0] != "datasets" or not isinstance(columns, list):
        return False
    return not {"labels", "input_ids"} & set(columns)


def read_items(name: str, part: Any) -> Any:
    """Read all items of a dataset, as a pair of inputs and targets or a dictionary of tensors.

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
        except Exception as error:  # the dataset's own code may raise anything
            raise DataError(
                f"{name} data: item {number} cannot be read: {type(error).__name__}: {error}"
            ) from error
        values, kind = _values(name, number, item)
        if not number:
            shape_of_items = kind
            size = total * sum(tensor.numel() * tensor.element_size() for tensor in values.values())
            table = {key: _allocate(tensor, total, size) for key, tensor in values.items()}
        _write(name, number, values, table)
    tensors = {key: torch.from_numpy(array) for key, array in table.items()}
    if shape_of_items is dict:
        return tensors
    *inputs, targets = tensors.values()
    return (inputs[0] if len(inputs) == 1 else tuple(inputs)), targets


def _values(name: str, number: int, item: object) -> tuple[dict[str, Tensor], type]:
    """Return the tensors of an item by name; the last of a sequence is the target."""
    values: Mapping[Any, Any]
    kind: type = dict
    if isinstance(item, Mapping):
        values = item
    elif isinstance(item, Sequence) and len(item) == 2 and isinstance(item[0], Mapping):
        values = {**item[0], "labels": item[1]}
    elif isinstance(item, Sequence) and not isinstance(item, str) and len(item) > 1:
        values, kind = dict(enumerate(item)), tuple
    else:
        raise DataError(
            f"{name} data: item {number} is a {type(item).__name__}; want (input, target) or a "
            "dictionary with 'labels'"
        )
    try:
        return {str(key): torch.as_tensor(value) for key, value in values.items()}, kind
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name} data: item {number} holds a value that is not a tensor ({error}); convert it "
            "in the dataset, as by a transform"
        ) from None


def _allocate(tensor: Tensor, total: int, size: int) -> np.ndarray[Any, Any]:
    """Return an array for all items, in a private file if they are large."""
    kind = tensor.numpy().dtype
    shape = (total, *tensor.shape)
    if size <= IN_MEMORY:
        return np.empty(shape, kind)
    descriptor, path = tempfile.mkstemp(prefix="submodel-", suffix=".items")
    os.close(descriptor)
    array = np.memmap(path, kind, "w+", shape=shape)
    Path(path).unlink()  # the file is deleted with the array
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


def read_part(name: str, part: object) -> tuple[Inputs, Tensor]:
    """Return the inputs and targets of one part of the data, checked.

    Args:
        name: the name of the part, for errors.
        part: a pair (inputs, targets), whose inputs may be a tensor, a tuple or a dictionary; a
            dictionary with ``labels``, or with ``input_ids`` alone; or a map-style torch dataset
            of such examples.

    >>> read_part("training", {"input_ids": torch.tensor([[5, 6, 7]])})[1].tolist()
    [[6, 7, -100]]
    """
    if is_item_dataset(part):
        part = read_items(name, part)
    elif isinstance(part, Mapping) or (isinstance(part, tuple | list) and len(part) == 2):
        part = as_tensors(part)  # lists of single examples stay
    if isinstance(part, Mapping):
        return _from_mapping(name, part)
    if isinstance(part, Tensor) or not isinstance(part, tuple | list) or len(part) != 2:
        description = f"a {type(part).__name__}"
        if isinstance(part, tuple | list):
            description += f" of {len(part)}"
        raise DataError(
            f"{name} data: {description} is not a pair (inputs, targets) of tensors or arrays"
        )
    return _checked_pair(name, part[0], part[1])


def _checked_pair(name: str, inputs: Any, targets: Any) -> tuple[Inputs, Tensor]:
    if isinstance(inputs, tuple | Mapping) and not inputs:
        raise DataError(f"{name} data: no inputs are given")
    if not isinstance(inputs, tuple | Mapping):
        inputs = check_tensor(name, "inputs", inputs)
    else:
        for column, tensor in columns(inputs).items():
            check_tensor(name, f"inputs {column!r}", tensor)
        inputs = map_inputs(Tensor.detach, inputs)
    targets = check_tensor(name, "targets", targets)
    for tensor in columns(inputs).values():
        if not len(tensor) or len(tensor) != len(targets):
            counts = f"{len(tensor)} inputs and {len(targets)} targets"
            raise DataError(f"{name} data: {counts}; want equal numbers, not 0")
    return inputs, targets


def _from_mapping(name: str, part: Mapping[str, Any]) -> tuple[Inputs, Tensor]:
    """Return inputs and targets of a dictionary with labels, or of tokens that are the labels."""
    inputs = {column: tensor for column, tensor in part.items() if column != _LABELS}
    tokens = inputs.get(_TOKENS)
    if _LABELS in part:
        labels = check_tensor(name, "labels", part[_LABELS])
        if isinstance(tokens, Tensor) and _are_the_tokens(labels, tokens):
            labels = next_labels(labels)
    elif isinstance(tokens, Tensor) and tokens.dim() == 2:
        labels = tokens.long()
        if isinstance(mask := inputs.get(_MASK), Tensor) and mask.shape == tokens.shape:
            labels = labels.masked_fill(mask == 0, NO_TARGET)
        labels = next_labels(labels)
    else:
        raise DataError(
            f"{name} data: a dictionary of {', '.join(map(repr, part))} has no 'labels'; give "
            "a pair (inputs, targets), or a dictionary with them"
        )
    if not inputs:
        raise DataError(f"{name} data: a dictionary of labels alone has no inputs")
    return _checked_pair(name, inputs, labels)


def _are_the_tokens(labels: Tensor, tokens: Tensor) -> bool:
    """Return whether labels are those of a causal language model: the tokens, or ignored."""
    if labels.shape != tokens.shape or labels.dim() != 2 or labels.is_floating_point():
        return False
    counts = labels != NO_TARGET
    return bool((labels[counts] == tokens[counts]).all())


def next_labels(labels: Tensor) -> Tensor:
    """Shift labels of tokens by one place, to that of the logits which predict them.

    >>> next_labels(torch.tensor([[1, 2, 3]])).tolist()
    [[2, 3, -100]]
    """
    last = torch.full_like(labels[:, :1], NO_TARGET)
    return torch.cat([labels[:, 1:], last], dim=1)
