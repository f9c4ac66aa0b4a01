"""Train one model over devices that cannot hold it: distributed sub-model training."""

from typing import TYPE_CHECKING

from submodel.errors import SubmodelError
from submodel.imports import lazily

if TYPE_CHECKING:
    from submodel.api import Result, train
    from submodel.axes.declare import Axes, declare
    from submodel.axes.tracer import trace
    from submodel.config import Config
    from submodel.data import Dataset, dataset, digits

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
__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("Result", "train"), "submodel.api"),
        **dict.fromkeys(("Axes", "declare", "trace"), "submodel.axes"),
        "Config": "submodel.config",
        **dict.fromkeys(("Dataset", "dataset", "digits"), "submodel.data"),
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
