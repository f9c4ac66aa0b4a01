"""What a model must know of data to be made for it: shapes, outputs, tokens, the task."""

from __future__ import annotations

from torch import Tensor

from submodel.data import Dataset, Examples
from submodel.model.inputs import first_column
from submodel.model.zoo import ModelContext
from submodel.tasks.base import is_whole, task_for


def context_of(data: Dataset) -> ModelContext:
    """The context of a model for the data.

    Whole numbers in rows are tokens. The task is `task_for` the data, and None where that does not
    tell how many outputs there must be.

    Args:
        data: the examples; of tokens, all are looked at for the largest.

    >>> import torch
    >>> from submodel.data import dataset
    >>> part = torch.tensor([[0, 1], [1, 5]]), torch.tensor([[1, 2], [5, 6]])
    >>> context_of(dataset(part, part))
    ModelContext(inputs=(2,), classes=7, vocabulary=7, task='language')
    """
    task = task_for(data)
    vocabulary = _count_tokens(data, task) if _are_tokens(data) else None
    if task == "language" and vocabulary is not None:
        return ModelContext(data.inputs, vocabulary, vocabulary, task)
    outputs = data.outputs if data.classes is None else data.classes
    is_known = task == "regression" or data.classes is not None
    return ModelContext(data.inputs, outputs, vocabulary, task if is_known else None)


def _tokens(part: Examples) -> Tensor:
    return first_column(part.x)


def _are_tokens(data: Dataset) -> bool:
    return is_whole(_tokens(data.train)) and _tokens(data.train).dim() == 2


def _count_tokens(data: Dataset, task: str) -> int:
    """One more than the largest token; a target that does not count is negative."""
    if data.text is not None:
        return data.text.vocabulary
    tensors = [
        _tokens(data.train),
        _tokens(data.test),
        *([data.train.y, data.test.y] if task == "language" else []),
    ]
    return 1 + max(0, *(int(tensor.max()) for tensor in tensors if tensor.numel()))
