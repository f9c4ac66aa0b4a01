"""The task that data is for."""

from __future__ import annotations

from torch import Tensor

from submodel.data import Dataset
from submodel.errors import ConfigError
from submodel.model.inputs import first_column
from submodel.tasks.base import TaskContext, TaskKind
from submodel.tasks.classification import Smoothing
from submodel.tasks.registry import TASKS


class TaskOfData:
    """Classification of labels, language of sequences of tokens, regression of other numbers."""

    Options = Smoothing

    @classmethod
    def configured(cls, options: Smoothing, context: TaskContext) -> TaskKind:
        """The task that the data is for, with the same keys."""
        if context.task == "regression" and options.label_smoothing:
            raise ConfigError(["task.label_smoothing: goes with labels, and targets are numbers"])
        return TASKS.find(context.task).make(options, context)


def task_for(data: Dataset) -> str:
    """The name of the task that data is for, decided here for losses, metrics and models.

    Labels are for classification; whole numbers for every place of the inputs, as the next tokens
    of text, for language; other numbers for regression.

    Args:
        data: the examples.

    >>> from submodel.data import digits
    >>> task_for(digits())
    'classification'
    """
    if data.classes is not None:
        return "classification"
    targets, inputs = data.train.y, first_column(data.train.x)
    is_by_place = targets.dim() == 2 and targets.shape == inputs.shape
    if data.text is not None or (is_whole(targets) and is_by_place):
        return "language"
    return "regression" if targets.is_floating_point() else "classification"


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor holds whole numbers.

    Args:
        tensor: of any type.

    >>> import torch
    >>> is_whole(torch.tensor([1])), is_whole(torch.tensor([1.0]))
    (True, False)
    """
    return not tensor.is_floating_point() and not tensor.is_complex()
