"""The algorithm: the parts of a round, and the merge of updates into a model."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.algorithm.dispatch import Dispatcher
    from submodel.algorithm.execution import Bundle
    from submodel.algorithm.merge import FILL_IN, SELECTIVE, Accumulator, average
    from submodel.algorithm.rounds import initial_state, plan, step
    from submodel.algorithm.server import shrinkage
    from submodel.algorithm.types import Assignment, Outcome, Setup, State, Task, Update

__all__ = [
    "FILL_IN", "SELECTIVE", "Accumulator", "Assignment", "Bundle", "Dispatcher", "Outcome", "Setup",
    "State", "Task", "Update", "average", "initial_state", "plan", "shrinkage", "step",
]  # fmt: skip
__getattr__ = lazily(__name__)
