"""A task: loss, reported metrics, and the number by which a run is judged."""

from submodel.tasks.base import TaskContext, TaskKind  # type: ignore[import-not-found]
from torch import Tensor
from torch.nn import functional

from submodel.tasks.metrics import Accuracy


def doubled(outputs: Tensor, targets: Tensor) -> Tensor:
    return 2 * functional.cross_entropy(outputs, targets)


def insistent(context: TaskContext, name: str = "right") -> TaskKind:
    return TaskKind("insistent", context.loss or doubled, {name: Accuracy()}, headline=name)
