"""Records of sub-models that devices keep (benchmarks/fitting.py), as evidence has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from submodel.errors import SubmodelError
from submodel.experiments import EXCLUSIVE
from submodel.files import UnreadableError, read_typed
from submodel_lab.advice.evidence import Circumstances, TriedWay
from submodel_lab.advice.fleet import fleet_shares

FIT = "rolling, then fit"
"""What is trained for itself after the run."""
FITTED_WAYS: dict[str, TriedWay] = {
    "rolling": TriedWay("rolling", ["scheme.name=rolling"]),
    FIT: TriedWay(FIT, ["scheme.name=rolling"], afterwards="submodel fit RUN --capacity CAPACITY"),
    "rolling:train.finish=1/4": TriedWay(
        "rolling:train.finish=1/4", ["scheme.name=rolling", "train.finish=1/4"]
    ),
    "static": TriedWay("static", ["scheme.name=static"]),
    "importance": TriedWay("importance", ["scheme.name=importance"]),
    "ordered:distill=1.0": TriedWay(
        "ordered:distill=1.0", ["scheme.name=ordered", "scheme.distill=1.0"]
    ),
    EXCLUSIVE: TriedWay(EXCLUSIVE, []),
}
_FILES = dict(
    zip(
        ("as-it-is", "fit", "finish", "static", "importance", "ordered-distilled", "exclusive"),
        FITTED_WAYS,
        strict=True,
    )
)
"""What the records of each are called."""
_RECORD, _CONFIG = TypeAdapter(dict[str, Any]), "config.json"
_MOST = 2**20  # bytes of a record


@dataclass(frozen=True)
class FittedScores:
    """Scores by way, measure and seed, and where they were measured."""

    circumstances: Circumstances
    scores: Mapping[str, Mapping[str, Mapping[int, float]]]


def read_fitted(folder: Path) -> FittedScores | None:
    """The records of one configuration; None: it is not kept, or they are not accuracies.

    Args:
        folder: of the records, with the configuration in ``config.json``.
    """
    if not (folder / _CONFIG).is_file():
        return None
    config = _read(folder / _CONFIG)
    scores: dict[str, dict[str, dict[int, float]]] = {}
    for file, way in _FILES.items():
        for path in sorted(folder.glob(f"{file}-seed-*.json")):
            record, seed = _read(path), int(path.stem.rpartition("-")[2])
            if record["metric"] != "accuracy":
                return None
            sizes = {float(c): score for c, score in record["capacities"].items()}
            measures = {
                "accuracy": record["global"],
                "mean over sizes": fmean(sizes.values()),
                "smallest size": sizes[min(sizes)],
            }
            by_measure = scores.setdefault(way, {measure: {} for measure in measures})
            for measure, value in measures.items():
                by_measure[measure][seed] = value
    clients, rounds = config["clients"], config["train"]["rounds"]
    circumstances = Circumstances(
        f"{config['data']['name']}, {clients['capacity_mode']} capacities",
        config["data"]["name"],
        config["model"]["name"],
        None,
        fleet_shares(clients["capacities"], clients.get("proportions")),
        (rounds, rounds),
        is_converged=False,
        budget="rounds",
    )
    return FittedScores(circumstances, scores)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_typed(_RECORD, path, _MOST)
    except UnreadableError as error:
        raise SubmodelError(f"{path}: not a record ({error})") from None
