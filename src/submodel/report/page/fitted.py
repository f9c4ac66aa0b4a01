"""The sub-models that `submodel fit` trained after a run, as its page shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from submodel.algorithm.tally import pack_units
from submodel.errors import SubmodelError, plain
from submodel.report.page.columns import finite
from submodel.runs.fitted import FitFolder
from submodel.runs.folder import RunFolder
from submodel.runs.holdings_file import read_model_outline

_MOST = 20  # capacities


@dataclass(frozen=True)
class PageFit:
    """One capacity's sub-model: what it scored before and after it was trained for itself."""

    capacity: float
    headline: str  # accuracy or loss
    before: float | None
    score: float | None
    global_score: float | None
    parameters: float | None
    rounds: float | None
    bytes: float | None
    flops: float | None
    cut: str
    sizes: Mapping[str, int]  # of every axis that it cuts
    units: Mapping[str, str]  # those that it has, packed as those of clients


def read_fits(folder: RunFolder, model_sha256: str) -> tuple[list[PageFit], list[str]]:
    """The fitted sub-models of a run's result, largest first; and what is damaged of them.

    Args:
        folder: of the run.
        model_sha256: of its result; what was fitted from another is left out.
    """
    fits, warnings = [], []
    for file in sorted(folder.path.glob("fit/capacity-*/fit.json"))[:_MOST]:
        try:
            capacity = float(file.parent.name.removeprefix("capacity-"))
            about = FitFolder(folder.path, capacity).result(model_sha256)
            if about is not None:
                fits.append(_fit(about, _sizes(folder)))
        except (SubmodelError, ValueError) as error:
            warnings.append(plain(error))
    return sorted(fits, key=lambda fit: -fit.capacity), warnings


def _sizes(folder: RunFolder) -> Mapping[str, int]:
    outline = read_model_outline(folder.outline_file)
    return {} if outline is None else outline.axes


def _fit(about: Mapping[str, Any], sizes: Mapping[str, int]) -> PageFit:
    headline = "accuracy" if "accuracy" in about["score"] else "loss"
    down, up = finite(about.get("bytes_down")), finite(about.get("bytes_up"))
    units = {
        axis: places
        for axis, places in about["units"].items()
        if places and axis in sizes and 0 <= min(places) <= max(places) < sizes[axis]
    }
    return PageFit(
        capacity=finite(about["capacity"]) or 0.0,
        headline=headline,
        before=_score(about, "score_before", headline),
        score=_score(about, "score", headline),
        global_score=_score(about, "global_score", headline),
        parameters=finite(about.get("parameters")),
        rounds=finite(about.get("rounds")),
        bytes=None if down is None or up is None else down + up,
        flops=finite(about.get("flops")),
        cut=plain(about.get("cut", ""), 40),
        sizes={axis: sizes[axis] for axis in units},
        units={axis: pack_units(np.array(p), sizes[axis]) for axis, p in units.items()},
    )


def _score(about: Mapping[str, Any], name: str, headline: str) -> float | None:
    entries = about.get(name)
    return finite(entries.get(headline)) if isinstance(entries, Mapping) else None
