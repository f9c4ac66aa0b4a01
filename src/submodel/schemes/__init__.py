"""Which units a client holds, each scheme with its mechanism. May import local and below."""

from submodel.model.capacity import units_held
from submodel.schemes.base import NOTHING, Draw, Knowledge, Mask, RunFacts, Scheme, SchemeMemory
from submodel.schemes.dropout import Dropout
from submodel.schemes.full import Full
from submodel.schemes.hierarchical import Hierarchical
from submodel.schemes.importance import Importance
from submodel.schemes.masked_sgd import MaskedSgd
from submodel.schemes.masks import draw_mask
from submodel.schemes.ordered.scheme import Ordered
from submodel.schemes.partition import PartitionScheme
from submodel.schemes.protocols import (
    Adaptation,
    Adapts,
    Client,
    ClientStep,
    HasCells,
    HasChances,
    HasLocalWork,
    HasMemory,
    HasOutputPasses,
    HasStepRule,
    LooksAtModel,
    MaskRole,
    Observation,
    Observes,
    SendsMasks,
    StepRule,
    TrainingRole,
)
from submodel.schemes.pruned import Pruned
from submodel.schemes.random.scheme import Random
from submodel.schemes.roles import BorrowsMasks, role, roles
from submodel.schemes.rolling import Rolling, default_windows, window_problems
from submodel.schemes.static import Static
from submodel.schemes.unbiased.scheme import Unbiased

__all__ = [
    "NOTHING",
    "Adaptation",
    "Adapts",
    "BorrowsMasks",
    "Client",
    "ClientStep",
    "Draw",
    "Dropout",
    "Full",
    "HasCells",
    "HasChances",
    "HasLocalWork",
    "HasMemory",
    "HasOutputPasses",
    "HasStepRule",
    "Hierarchical",
    "Importance",
    "Knowledge",
    "LooksAtModel",
    "Mask",
    "MaskRole",
    "MaskedSgd",
    "Observation",
    "Observes",
    "Ordered",
    "PartitionScheme",
    "Pruned",
    "Random",
    "Rolling",
    "RunFacts",
    "Scheme",
    "SchemeMemory",
    "SendsMasks",
    "Static",
    "StepRule",
    "TrainingRole",
    "Unbiased",
    "default_windows",
    "draw_mask",
    "role",
    "roles",
    "units_held",
    "window_problems",
]
