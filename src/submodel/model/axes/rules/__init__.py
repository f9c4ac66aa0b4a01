"""One short rule per ATen operator: the dimensions of its results from those of its operands."""

import submodel.model.axes.rules.compute
import submodel.model.axes.rules.move  # noqa: F401 - importing them enters their rules
from submodel.model.axes.rules.call import OperatorWatch, find_rule

__all__ = ["OperatorWatch", "find_rule"]
