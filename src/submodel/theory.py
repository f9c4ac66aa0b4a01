"""The former name of `submodel_lab.theory`, for code that was written before the theory moved."""

import importlib
import sys

from submodel.errors import SubmodelError
from submodel.extensions import FROM_LAB

try:
    sys.modules[__name__] = importlib.import_module("submodel_lab.theory")
except ModuleNotFoundError as error:
    if error.name != "submodel_lab":
        raise
    raise SubmodelError(f"submodel.theory {FROM_LAB}") from None
