"""Train one model over devices that cannot hold it: distributed sub-model training."""

from typing import TYPE_CHECKING

from submodel.core.errors import SubmodelError
from submodel.core.former import install
from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.api import Result, build, train
    from submodel.comparison import compare
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
    from submodel.model import Axes, declare, trace
    from submodel.report import write_report
    from submodel.runs import Callback
    from submodel.runs.open import Run, open  # noqa: A004
    from submodel.tasks import TaskKind

install()
__version__ = "0.1.0"
__all__ = [
    "Axes", "AxesSection", "Callback", "ClientsSection", "Config", "DataSection", "Dataset",
    "DevicesSection", "EngineSection", "LocalSection", "MergeSection", "ModelSection", "Result",
    "Run", "SchemeSection", "ServerSection", "SubmodelError", "TaskKind", "TaskSection",
    "TrainSection", "build", "compare", "dataset", "declare", "digits", "load_dataset", "open",
    "trace", "train", "write_report",
]  # fmt: skip
__getattr__ = lazily(__name__)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
