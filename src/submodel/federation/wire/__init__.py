"""What travels between a server and its devices: one file per message, a head and some tensors.

parcel.py has the format of every message, task.py, update.py and moments.py one kind each: what is
written, what is read, and how large it may be. A task carries the units that the device holds and
their values, the first one also the base (base.py), which a device keeps; an update what became of
them, moments what the static norms of a sub-model saw.
"""

from submodel.federation.wire.base import ModelBase
from submodel.federation.wire.moments import moments_limits, moments_parcel, read_moments
from submodel.federation.wire.parcel import Limits, Parcel, PositiveInteger, WireError, read_as
from submodel.federation.wire.task import read_base, read_task, task_parcel
from submodel.federation.wire.update import (
    TrainingCost,
    read_update,
    update_limits,
    update_parcel,
)

__all__ = [
    "Limits",
    "ModelBase",
    "Parcel",
    "PositiveInteger",
    "TrainingCost",
    "WireError",
    "moments_limits",
    "moments_parcel",
    "read_as",
    "read_base",
    "read_moments",
    "read_task",
    "read_update",
    "task_parcel",
    "update_limits",
    "update_parcel",
]
