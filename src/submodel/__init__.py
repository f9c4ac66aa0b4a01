"""Train one model over devices that cannot hold it: distributed sub-model training."""

from typing import TYPE_CHECKING

from submodel.errors import SubmodelError
from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.api import Result, build, train
    from submodel.config import (
        AxesSection,
        ClientsSection,
        Config,
        DataSection,
        DevicesSection,
        EngineSection,
        LocalSection,
        MergeSection,
        ModelSection,
        SchemeSection,
        ServerSection,
        TaskSection,
        TrainSection,
    )
    from submodel.data import Dataset, dataset, digits, load_dataset
    from submodel.experiments.comparison.plan import compare
    from submodel.model.axes.declare import Axes, declare
    from submodel.model.axes.tracer import trace
    from submodel.report.page.write import write_report
    from submodel.runs.callbacks.base import Callback
    from submodel.runs.open import Run, open  # noqa: A004
    from submodel.tasks.base import TaskKind

__version__ = "0.1.0"
__all__ = [
    "Axes",
    "AxesSection",
    "Callback",
    "ClientsSection",
    "Config",
    "DataSection",
    "Dataset",
    "DevicesSection",
    "EngineSection",
    "LocalSection",
    "MergeSection",
    "ModelSection",
    "Result",
    "Run",
    "SchemeSection",
    "ServerSection",
    "SubmodelError",
    "TaskKind",
    "TaskSection",
    "TrainSection",
    "build",
    "compare",
    "dataset",
    "declare",
    "digits",
    "load_dataset",
    "open",
    "trace",
    "train",
    "write_report",
]
__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("Result", "build", "train"), "submodel.api"),
        **dict.fromkeys(("Run", "open"), "submodel.runs.open"),
        **dict.fromkeys(("Axes", "declare", "trace"), "submodel.model.axes"),
        "Callback": "submodel.runs.callbacks",
        **{name: "submodel.config" for name in __all__ if name.endswith("Section")},
        "Config": "submodel.config",
        "compare": "submodel.experiments.comparison.plan",
        **dict.fromkeys(("Dataset", "dataset", "digits", "load_dataset"), "submodel.data"),
        "TaskKind": "submodel.tasks.base",
        "write_report": "submodel.report.page.write",
    },
)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
