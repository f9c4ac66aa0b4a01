"""Tasks: losses and metrics, and how a client trains: local steps, optimisers, schedules."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.tasks.base import TaskContext, TaskKind
    from submodel.tasks.metrics import MetricContext
    from submodel.tasks.optimisers import Gradients, Slots

__all__ = [
    "Gradients", "MetricContext", "Slots", "TaskContext", "TaskKind",
]  # fmt: skip
__getattr__ = lazily(__name__)
