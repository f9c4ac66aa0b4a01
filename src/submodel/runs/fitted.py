"""Files of a fitted sub-model, in a folder of the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import ConfigDict, TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from typing_extensions import TypedDict

from submodel.algorithm.types import Setup
from submodel.core.errors import SubmodelError
from submodel.core.files import UnreadableError, read_typed, write_text
from submodel.model.cut import Tensors, UnitCut, gather
from submodel.runs.checkpoint import model_sha256, write_tensors
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics

_MOST_JSON = 2**26  # bytes; the file contains the units of every axis


class _Result(TypedDict):
    """The entries of ``fit.json`` that are read; there may be more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    capacity: float
    units: dict[str, list[int]]
    model_sha256: str
    fitted_sha256: str
    score: dict[str, float]


_RESULT: TypeAdapter[Any] = TypeAdapter(_Result)

CutChoice = Literal["search", "importance", "prefix", "scheme"]
"""Choice of the units of a fitted sub-model."""


@dataclass(frozen=True)
class FitPlan:
    """Plan of a fit; a fit with the same plan continues where it stopped.

    Args:
        capacity: capacity of the sub-model.
        rounds: rounds over the clients that can hold it.
        lr: learning rate of the clients.
        cut: choice of its units.
        model_sha256: hash of the global model that it is cut from.
    """

    capacity: float
    rounds: int
    lr: float
    cut: CutChoice
    model_sha256: str


@dataclass(frozen=True)
class FitStart:
    """Start of a fit, as in ``start.json``: the chosen cut, and the cost of choosing it.

    Args:
        plan: plan of the fit.
        cut: name of the chosen cut.
        units: units of the sub-model by axis.
        candidates: scores of all tried cuts by name.
        bytes_down: bytes sent to the clients that tried them.
        flops: FLOPs of these clients.
    """

    plan: FitPlan
    cut: str
    units: dict[str, list[int]]
    candidates: dict[str, dict[str, float]]
    bytes_down: int
    flops: int


_START = TypeAdapter(FitStart)


@dataclass(frozen=True)
class FittedModel:
    """A sub-model that was trained on its own.

    Args:
        cut: units of the global model that it contains.
        tensors: tensors of the global model, with those of the sub-model in their places.
        about: result of the fit, as in ``fit.json``.
    """

    cut: UnitCut
    tensors: Tensors
    about: Metrics


class FitFolder:
    """The files of one capacity's fit."""

    def __init__(self, run: Path, capacity: float) -> None:
        self.files = RunFolder(run / "fit" / f"capacity-{capacity:g}")
        self.start_file = self.files.path / "start.json"
        self.result_file = self.files.path / "fit.json"
        self._again = f"'submodel fit {run} --capacity {capacity:g}' fits it again"

    def start(self, setup: Setup, plan: FitPlan) -> FitStart | None:
        """Read the start of a fit with this plan; None if there is none."""
        try:
            start = read_typed(_START, self.start_file, _MOST_JSON)
        except UnreadableError:
            return None
        if start.plan != plan:
            return None
        cut_of_units(setup, start.units)  # raises if the model lacks such units
        return start

    def begin(self, start: FitStart) -> None:
        """Empty the folder and write the start of a fit."""
        shutil.rmtree(self.files.path, ignore_errors=True)
        self.files.path.mkdir(parents=True)
        write_text(self.start_file, json.dumps(asdict(start), indent=2) + "\n")

    def finish(self, cut: UnitCut, tensors: Tensors, about: Mapping[str, Any]) -> Metrics:
        """Write the fitted sub-model and its result; remove the checkpoints."""
        small = gather(cut, tensors)
        write_tensors(self.files.model_file, small)
        result = {**about, "units": units_of(cut), "fitted_sha256": model_sha256(small)}
        write_text(self.result_file, json.dumps(result, indent=2) + "\n")
        shutil.rmtree(self.files.checkpoints, ignore_errors=True)
        return result

    def result(self, model: str) -> Metrics | None:
        """Read the result of a finished fit of this global model; else None."""
        if not self.result_file.is_file():
            return None
        try:
            about: Metrics = read_typed(_RESULT, self.result_file, _MOST_JSON)
        except UnreadableError as error:
            raise SubmodelError(f"{self.result_file}: damaged: {error}; {self._again}") from None
        return about if about["model_sha256"] == model else None

    def load(self, setup: Setup, tensors: Tensors, model: str) -> FittedModel | None:
        """Load the fitted sub-model of the global model with this hash; None if there is none."""
        about = self.result(model)
        if about is None:
            return None
        cut = cut_of_units(setup, about["units"])
        path = self.files.model_file
        try:
            small = load_file(path)
        except (OSError, SafetensorError) as error:
            raise SubmodelError(f"{path}: cannot be read ({error}); {self._again}") from None
        if model_sha256(small) != about["fitted_sha256"]:
            raise SubmodelError(f"{path}: damaged, it does not match its hash; {self._again}")
        whole = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, part in small.items():
            cut.put(name, whole[name], part)
        return FittedModel(cut, whole, about)


def units_of(cut: UnitCut) -> dict[str, list[int]]:
    """Convert the units of a cut to lists by axis, for JSON."""
    return {axis: units.tolist() for axis, units in cut.units.items()}


def cut_of_units(setup: Setup, units: Mapping[str, list[int]]) -> UnitCut:
    """Make the cut of these units; raise `SubmodelError` if the model lacks some."""
    sizes = setup.axes.cut_by_capacity
    for axis, places in units.items():
        if axis not in sizes or not places or not 0 <= min(places) <= max(places) < sizes[axis]:
            raise SubmodelError(f"the fitted sub-model has units of {axis!r} that the model lacks")
    return UnitCut(setup.axes, {axis: np.array(places) for axis, places in units.items()})
