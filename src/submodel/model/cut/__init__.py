"""Cuts: what one client holds in one round, and how it is gathered from and added to the whole.

A *unit* cut keeps whole units of every axis, so the client's tensors are really smaller. A
*coordinate* cut keeps single weights: the tensors keep their shape and the rest is zero.
Both are immutable and know nothing of schemes, engines or rounds.
"""

from submodel.model.cut.base import (
    COORDINATES,
    Cut,
    Granularity,
    Plan,
    Tensors,
    count_values,
    cut_digest,
)
from submodel.model.cut.coordinates import WHOLE, CoordinateCut
from submodel.model.cut.flat import FlatLayout, is_plain, small_layout
from submodel.model.cut.gather import CutSource, LastCut, copy_part, gather, lay_out
from submodel.model.cut.plan import PlannedCut, from_runs, read_runs, runs
from submodel.model.cut.units import UnitCut

__all__ = [
    "COORDINATES",
    "WHOLE",
    "CoordinateCut",
    "Cut",
    "CutSource",
    "FlatLayout",
    "Granularity",
    "LastCut",
    "Plan",
    "PlannedCut",
    "Tensors",
    "UnitCut",
    "copy_part",
    "count_values",
    "cut_digest",
    "from_runs",
    "gather",
    "is_plain",
    "lay_out",
    "read_runs",
    "runs",
    "small_layout",
]
