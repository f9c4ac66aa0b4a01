"""Which units a client holds, each scheme with its mechanism. May import local and below."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
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
    from submodel.schemes.roles import BorrowsMasks, all_roles, role
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
    "all_roles",
    "default_windows",
    "draw_mask",
    "role",
    "units_held",
    "window_problems",
]
__getattr__ = lazily(
    __name__,
    {
        "units_held": "submodel.model.capacity",
        **dict.fromkeys(
            ("NOTHING", "Draw", "Knowledge", "Mask", "RunFacts", "Scheme", "SchemeMemory"),
            "submodel.schemes.base",
        ),
        "Dropout": "submodel.schemes.dropout",
        "Full": "submodel.schemes.full",
        "Hierarchical": "submodel.schemes.hierarchical",
        "Importance": "submodel.schemes.importance",
        "MaskedSgd": "submodel.schemes.masked_sgd",
        "draw_mask": "submodel.schemes.masks",
        "Ordered": "submodel.schemes.ordered.scheme",
        "PartitionScheme": "submodel.schemes.partition",
        **dict.fromkeys(
            (
                "Adaptation",
                "Adapts",
                "Client",
                "ClientStep",
                "HasCells",
                "HasChances",
                "HasLocalWork",
                "HasMemory",
                "HasOutputPasses",
                "HasStepRule",
                "LooksAtModel",
                "MaskRole",
                "Observation",
                "Observes",
                "SendsMasks",
                "StepRule",
                "TrainingRole",
            ),
            "submodel.schemes.protocols",
        ),
        "Pruned": "submodel.schemes.pruned",
        "Random": "submodel.schemes.random.scheme",
        **dict.fromkeys(("BorrowsMasks", "role", "all_roles"), "submodel.schemes.roles"),
        **dict.fromkeys(
            ("Rolling", "default_windows", "window_problems"), "submodel.schemes.rolling"
        ),
        "Static": "submodel.schemes.static",
        "Unbiased": "submodel.schemes.unbiased.scheme",
    },
)
