"""What is learned: losses, and what they count."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.tasks.base import TaskContext, TaskKind
    from submodel.tasks.metrics import MetricContext

__all__ = [
    "MetricContext", "TaskContext", "TaskKind",
]  # fmt: skip
__getattr__ = lazily(
    __name__,
    {
        "submodel.tasks.base": "TaskContext TaskKind",
        "submodel.tasks.metrics": "MetricContext",
    },
)
