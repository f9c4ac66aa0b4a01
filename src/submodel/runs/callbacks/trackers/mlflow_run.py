"""Tracker for MLflow, with a database in the run's folder or at a configured address."""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from submodel.algorithm.types import State
from submodel.core.extras import needs_extra
from submodel.core.files import write_text
from submodel.core.options import Section
from submodel.runs.callbacks.callback import Callback
from submodel.runs.callbacks.trackers import TrackerContext, scalars, times
from submodel.runs.metrics import Metrics
from submodel.runs.training import Training

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
with needs_extra("mlflow", "train.trackers: 'mlflow'"):
    import alembic  # noqa: F401 - needed for the database, but not part of mlflow-skinny
    import sqlalchemy  # noqa: F401
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient


_LARGEST_BATCH = 1000  # MLflow's limit on metrics per call
_LONGEST_PARAM = 6000


class MlflowRun(Callback):
    """Tracker that logs to ``mlflow/mlflow.db`` of the run's folder, or to ``MLFLOW_TRACKING_URI``.

    A resumed run continues the same MLflow run and logs only missing steps.
    ``mlflow ui --backend-store-uri sqlite:///RUN/mlflow/mlflow.db`` shows it.
    """

    def __init__(self, folder: Path, address: str | None = None) -> None:
        self._folder = folder
        self._address = address or f"sqlite:///{folder.resolve() / 'mlflow.db'}"
        self._id = ""
        self._steps: dict[str, set[int]] = {}  # logged steps by metric

    @classmethod
    def configured(cls, options: Section, context: TrackerContext) -> Self:
        """Make the tracker for a run's folder, or for the address in the environment."""
        folder = context.needed_folder("mlflow") / "mlflow"
        return cls(folder, os.environ.get("MLFLOW_TRACKING_URI"))

    def begin(self, training: Training, state: State, history: list[Metrics]) -> None:
        """Log the configuration and the finished rounds that are missing."""
        self._folder.mkdir(exist_ok=True)
        self._client = _connect(self._address)
        config = training.config
        self._id = self._find() or self._create(config.name, config.model_dump(mode="json"))
        self._client.update_run(self._id, status="RUNNING")
        for name in self._client.get_run(self._id).data.metrics:
            steps = self._client.get_metric_history(self._id, name)
            self._steps[name] = {metric.step for metric in steps}
        self._log(zip(history, times(history, time.time()), strict=True))

    def after_round(self, before: State, after: State, line: Metrics) -> None:
        """Log one more step."""
        self._log([(line, time.time())])

    def stop(self, state: State, history: Sequence[Metrics]) -> None:
        """Log the last round, if it is missing, and mark the run as killed."""
        if self._id:
            self._log(zip(history, times(history, time.time()), strict=True))
            self._client.set_terminated(self._id, "KILLED")

    def finish(self, last: State, final: State, history: Sequence[Metrics]) -> Mapping[str, Any]:
        """Mark the run as finished."""
        self._client.set_terminated(self._id, "FINISHED")
        return {}

    def _find(self) -> str:
        """Return the identity of an existing MLflow run; empty if there is none."""
        file = self._folder / "run-id.txt"
        if not file.is_file():
            return ""
        identity = file.read_text("utf-8").strip()
        try:
            self._client.get_run(identity)
        except MlflowException:  # the address has changed
            return ""
        return identity

    def _create(self, name: str, config: Mapping[str, Any]) -> str:
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", "submodel")
        experiment = self._client.get_experiment_by_name(title)
        if experiment is None:
            local = self._address.startswith("sqlite:")
            place = (self._folder.resolve() / "artifacts").as_uri() if local else None
            number = self._client.create_experiment(title, artifact_location=place)
        else:
            number = experiment.experiment_id
        identity: str = self._client.create_run(number, run_name=name).info.run_id
        write_text(self._folder / "run-id.txt", identity)
        self._client.log_batch(identity, params=list(_params(config)))
        return identity

    def _log(self, lines: Iterable[tuple[Metrics, float]]) -> None:
        metrics = []
        for line, moment in lines:
            step = line["round"]
            for name, value in scalars(line).items():
                steps = self._steps.setdefault(name, set())
                if step not in steps:
                    steps.add(step)
                    metrics.append(Metric(name, value, int(moment * 1000), step))
        for start in range(0, len(metrics), _LARGEST_BATCH):
            self._client.log_batch(self._id, metrics=metrics[start : start + _LARGEST_BATCH])


def _connect(address: str) -> MlflowClient:
    """Connect without log output of MLflow itself."""
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # raised within MLflow
        return MlflowClient(tracking_uri=address)


def _params(config: Mapping[str, Any], prefix: str = "") -> Iterable[Param]:
    """Yield the settings as ``section.key``."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _params(value, f"{prefix}{key}.")
        else:
            yield Param(f"{prefix}{key}", str(value)[:_LONGEST_PARAM])
