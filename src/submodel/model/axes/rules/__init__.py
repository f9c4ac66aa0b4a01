"""One short rule per ATen operator: how its results' dimensions follow from its operands'."""

import submodel.model.axes.rules.contract
import submodel.model.axes.rules.look_up
import submodel.model.axes.rules.move
import submodel.model.axes.rules.normalise
import submodel.model.axes.rules.reduce  # noqa: F401 - importing them enters their rules
from submodel.model.axes.rules.call import Call, Rule, find_rule

__all__ = ["Call", "Rule", "find_rule"]
