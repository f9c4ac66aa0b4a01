"""A tracker that writes a line of text per round beside the run's own files."""

from submodel import Callback
from submodel.algorithm.types import State
from submodel.runs.callbacks.trackers import TrackerContext
from submodel.runs.metrics import Metrics


class Notes(Callback):
    def __init__(self, context: TrackerContext) -> None:
        self._file = context.needed_folder("Notes") / "notes.txt"
        self._name = context.config.name

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        with self._file.open("a") as file:
            file.write(f"{self._name} {line['round']} {line['train_loss']}\n")
