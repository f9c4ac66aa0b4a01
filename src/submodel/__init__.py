"""Train one model over devices that cannot hold it: distributed sub-model training."""

from submodel.api import Result, train
from submodel.axes import Axes, declare, trace
from submodel.config import Config
from submodel.data import Dataset, dataset, digits
from submodel.errors import SubmodelError

__version__ = "0.1.0"
__all__ = [
    "Axes",
    "Config",
    "Dataset",
    "Result",
    "SubmodelError",
    "dataset",
    "declare",
    "digits",
    "trace",
    "train",
]
