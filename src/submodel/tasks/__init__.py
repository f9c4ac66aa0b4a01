"""Tasks: losses, metrics, local steps, optimisers and schedules."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.tasks.metrics import MetricContext
    from submodel.tasks.optimisers import Gradients, Slots
    from submodel.tasks.task import TaskContext, TaskKind

__all__ = [
    "Gradients", "MetricContext", "Slots", "TaskContext", "TaskKind",
]  # fmt: skip
__getattr__ = lazily(__name__)
