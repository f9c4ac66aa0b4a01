"""What travels between a server and its devices: one file per message, a head and some tensors.

parcel.py has the format of every message, task.py what goes out, update.py what comes back: what is
written, what is read, and how large it may be. A task carries the units that the device holds and
their values, the first one also the base, which a device keeps; an update what became of them,
moments what the static norms of a sub-model saw.
"""

from submodel.federation.wire.parcel import Limits, Parcel, PositiveInteger, WireError, read_as
from submodel.federation.wire.task import ModelBase, read_base, read_task, task_parcel
from submodel.federation.wire.update import (
    TrainingCost,
    moments_limits,
    moments_parcel,
    read_moments,
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
