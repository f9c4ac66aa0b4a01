"""One short rule per ATen operator: how its results' dimensions follow from its operands'."""

import submodel.axes.rules.contract
import submodel.axes.rules.look_up
import submodel.axes.rules.move
import submodel.axes.rules.normalise
import submodel.axes.rules.reduce  # noqa: F401 - importing them enters their rules
from submodel.axes.rules.call import Call, Rule, find

__all__ = ["Call", "Rule", "find"]
