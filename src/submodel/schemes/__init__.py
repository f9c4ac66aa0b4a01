"""Schemes: the rules that choose which units a client holds."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.model.axes.declare import units_held
    from submodel.schemes.builtin_schemes import SCHEMES
    from submodel.schemes.draw import draw_mask
    from submodel.schemes.former import (
        Adapts,
        HasCells,
        HasChances,
        HasLocalWork,
        HasMemory,
        HasOutputPasses,
        HasStepRule,
        LooksAtModel,
        MaskRole,
        Observes,
        SendsMasks,
        TrainingRole,
        all_roles,
        role,
    )
    from submodel.schemes.hierarchical import Hierarchical
    from submodel.schemes.importance import Importance
    from submodel.schemes.masked_sgd import MaskedSgd
    from submodel.schemes.ordered import Ordered
    from submodel.schemes.partition import PartitionScheme
    from submodel.schemes.pruned import Pruned
    from submodel.schemes.random import Dropout, Random
    from submodel.schemes.rolling import Full, Rolling, Static, default_windows, window_problems
    from submodel.schemes.scheme import (
        NOTHING,
        Adaptation,
        BorrowsMasks,
        Client,
        ClientStep,
        Draw,
        Knowledge,
        Mask,
        Observation,
        RunFacts,
        Scheme,
        SchemeContext,
        SchemeMemory,
        StepRule,
        output_passes,
        problems_of,
    )
    from submodel.schemes.unbiased import Unbiased

__all__ = [
    "NOTHING", "SCHEMES", "Adaptation", "Adapts", "BorrowsMasks", "Client", "ClientStep", "Draw",
    "Dropout", "Full", "HasCells", "HasChances", "HasLocalWork", "HasMemory", "HasOutputPasses",
    "HasStepRule", "Hierarchical", "Importance", "Knowledge", "LooksAtModel", "Mask", "MaskRole",
    "MaskedSgd", "Observation", "Observes", "Ordered", "PartitionScheme", "Pruned", "Random",
    "Rolling", "RunFacts", "Scheme", "SchemeContext", "SchemeMemory", "SendsMasks", "Static",
    "StepRule", "TrainingRole", "Unbiased", "all_roles", "default_windows", "draw_mask",
    "output_passes", "problems_of", "role", "units_held", "window_problems",
]  # fmt: skip
__getattr__ = lazily(__name__)
