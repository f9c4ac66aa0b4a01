"""Models: axes, cuts, construction of sub-models, costs, and built-in models."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.model.axes.declare import Axes, declare, units_held
    from submodel.model.axes.tracer import trace
    from submodel.model.cost import BACKWARD, CostModel
    from submodel.model.cut import COORDINATES, prefix_cut
    from submodel.model.inspect import inspect_axes, subject
    from submodel.model.zoo import ModelContext, make_model

__all__ = [
    "BACKWARD", "COORDINATES", "Axes", "CostModel", "ModelContext", "declare", "inspect_axes",
    "make_model", "prefix_cut", "subject", "trace", "units_held",
]  # fmt: skip
__getattr__ = lazily(__name__)
