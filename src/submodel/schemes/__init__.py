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
from submodel.schemes.hierarchical import Hierarchical
from submodel.schemes.pruned import Pruned
from submodel.schemes.rolling import Rolling, default_windows, window_problems

__all__ = [
    "NOTHING",
    "Adaptation",
    "Draw",
    "Full",
    "Given",
    "Hierarchical",
    "Known",
    "Mask",
    "Memory",
    "Pruned",
    "Random",
    "Rolling",
    "Scheme",
    "Static",
    "default_windows",
    "units_held",
    "window_problems",
]
