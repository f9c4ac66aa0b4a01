"""A part of the data as users have it: pairs, dictionaries of tensors or arrays, torch datasets.

What Hugging Face's models are given is a dictionary with ``labels`` in it. Those of causal language
models are the tokens themselves, and the models compare each with the logits of the place before;
here targets stand at the place of the logits that they are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from submodel.data.checks import check_lengths, check_tensor
from submodel.data.items import is_item_dataset, read_items
from submodel.errors import DataError
from submodel.model.inputs import Inputs, as_tensors, columns, map_inputs

NO_TARGET = -100
"""A target that does not count, as torch's cross-entropy and Hugging Face's models have it."""
_LABELS, _TOKENS, _MASK = "labels", "input_ids", "attention_mask"


def read_part(name: str, part: object) -> tuple[Inputs, Tensor]:
    """The inputs and targets of one part of the data, checked.

    Args:
        name: of the part, for errors.
        part: a pair (inputs, targets), whose inputs may be a tensor, a tuple or a dictionary; a
            dictionary with ``labels``, or with ``input_ids`` alone; or a map-style torch dataset
            of such examples.

    >>> read_part("training", {"input_ids": torch.tensor([[5, 6, 7]])})[1].tolist()
    [[6, 7, -100]]
    """
    part = read_items(name, part) if is_item_dataset(part) else _of_arrays(part)
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


def _of_arrays(part: object) -> object:
    """A pair or dictionary with its arrays as tensors; examples one by one are left alone."""
    if isinstance(part, Mapping) or (isinstance(part, tuple | list) and len(part) == 2):
        return as_tensors(part)
    return part


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
    check_lengths(name, columns(inputs), targets)
    return inputs, targets


def _from_mapping(name: str, part: Mapping[str, Any]) -> tuple[Inputs, Tensor]:
    """Inputs and targets of a dictionary with labels, or of tokens that are their own labels."""
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
    """Whether labels are those of a causal language model: the tokens, wherever they count."""
    if labels.shape != tokens.shape or labels.dim() != 2 or labels.is_floating_point():
        return False
    counts = labels != NO_TARGET
    return bool((labels[counts] == tokens[counts]).all())


def next_labels(labels: Tensor) -> Tensor:
    """Labels of tokens, each moved to the place before: what the logits there are to tell.

    >>> next_labels(torch.tensor([[1, 2, 3]])).tolist()
    [[2, 3, -100]]
    """
    last = torch.full_like(labels[:, :1], NO_TARGET)
    return torch.cat([labels[:, 1:], last], dim=1)
