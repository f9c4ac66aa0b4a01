"""The trackers that a configuration can name: what they are stands in ``runs``, far above.

Only names and paths are here; no code of a tracker is loaded to read a configuration.
"""

from __future__ import annotations

from submodel.plugins import Kind, Offer, find

KEY = "train.trackers"


def _is_callback(thing: object) -> bool:
    kind = find("submodel.runs.callbacks.base:Callback", KEY)
    return isinstance(kind, type) and isinstance(thing, kind)


TRACKERS: Kind[object] = Kind(
    noun="tracker",
    key=KEY,
    group="submodel.trackers",
    wants="a submodel.Callback",
    is_one=_is_callback,
    with_context=True,
    offers={
        "csv": Offer(
            "submodel.runs.callbacks.trackers.csv_file:CsvFile",
            "metrics.csv in the run's folder, a row per round",
        ),
        "tensorboard": Offer(
            "submodel.runs.callbacks.trackers.tensorboard_events:TensorboardEvents",
            "curves in tensorboard/ of the run's folder",
        ),
        "wandb": Offer(
            "submodel.runs.callbacks.trackers.wandb_run:WandbRun",
            "offline in wandb/, or by WANDB_MODE",
        ),
        "mlflow": Offer(
            "submodel.runs.callbacks.trackers.mlflow_run:MlflowRun",
            "a database in mlflow/, or at MLFLOW_TRACKING_URI",
        ),
    },
)
"""Made with a `submodel.runs.callbacks.trackers.TrackerContext`."""
