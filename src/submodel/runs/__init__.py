"""Runs: the loop over rounds, the folder of a run, and operations on finished runs."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.core.errors import Interruption
    from submodel.runs.callbacks.callback import Callback
    from submodel.runs.callbacks.trackers import TrackerContext
    from submodel.runs.metrics import Metrics
    from submodel.runs.training import Training

__all__ = [
    "Callback", "Interruption", "Metrics", "TrackerContext", "Training",
]  # fmt: skip
__getattr__ = lazily(__name__)
