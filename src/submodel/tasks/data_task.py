"""The task that data is for."""

from __future__ import annotations

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
    """The name of the task that data is for.

    >>> from submodel.data import digits
    >>> task_for(digits())
    'classification'
    """
    if data.classes is not None:
        return "classification"
    targets, inputs = data.train.y, first_column(data.train.x)
    whole = not targets.is_floating_point() and not targets.is_complex()
    if data.text is not None or (whole and targets.dim() == 2 and targets.shape == inputs.shape):
        return "language"
    return "regression" if targets.is_floating_point() else "classification"
