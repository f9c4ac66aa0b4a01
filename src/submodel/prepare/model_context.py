"""What a model must know of data to be made for it: shapes, outputs, tokens, the task."""

from __future__ import annotations

from torch import Tensor

from submodel.data import Dataset, Examples
from submodel.model.inputs import first_column
from submodel.model.zoo import ModelContext


def context_of(data: Dataset) -> ModelContext:
    """The context of a model for the data.

    Whole numbers in rows are tokens; where targets are whole numbers of the same shape, the task is
    to tell them, place by place.

    Args:
        data: the examples; of tokens, all are looked at for the largest.

    >>> import torch
    >>> from submodel.data import dataset
    >>> part = torch.tensor([[0, 1], [1, 5]]), torch.tensor([[1, 2], [5, 6]])
    >>> context_of(dataset(part, part))
    ModelContext(inputs=(2,), classes=7, vocabulary=7, task='language')
    """
    targets = data.train.y
    is_language = (
        _are_tokens(data) and _is_whole(targets) and targets.shape == _tokens(data.train).shape
    )
    vocabulary = _count_tokens(data, is_language) if _are_tokens(data) else None
    if data.classes is not None:
        return ModelContext(data.inputs, data.classes, vocabulary, "classification")
    if is_language and vocabulary is not None:
        return ModelContext(data.inputs, vocabulary, vocabulary, "language")
    task = "regression" if targets.is_floating_point() else None
    return ModelContext(data.inputs, data.outputs, vocabulary, task)


def _is_whole(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _tokens(part: Examples) -> Tensor:
    return first_column(part.x)


def _are_tokens(data: Dataset) -> bool:
    return _is_whole(_tokens(data.train)) and _tokens(data.train).dim() == 2


def _count_tokens(data: Dataset, is_language: bool) -> int:
    """One more than the largest token; a target that does not count is negative."""
    if data.text is not None:
        return data.text.vocabulary
    tensors = [
        _tokens(data.train),
        _tokens(data.test),
        *([data.train.y, data.test.y] if is_language else []),
    ]
    return 1 + max(0, *(int(tensor.max()) for tensor in tensors if tensor.numel()))
