"""The schemes: rules that say which units of an axis a client holds in a round."""

from submodel.schemes.base import (
    NOTHING,
    Adaptation,
    Draw,
    Given,
    Known,
    Mask,
    Memory,
    Scheme,
    units_held,
)
from submodel.schemes.basic import Full, Random, Static
from submodel.schemes.dropout import Dropout
from submodel.schemes.importance import Importance
from submodel.schemes.partition import Partition
from submodel.schemes.rolling import Rolling, default_windows, window_problems

__all__ = [
    "NOTHING",
    "Adaptation",
    "Draw",
    "Dropout",
    "Full",
    "Given",
    "Importance",
    "Known",
    "Mask",
    "Memory",
    "Partition",
    "Random",
    "Rolling",
    "Scheme",
    "Static",
    "default_windows",
    "units_held",
    "window_problems",
]
