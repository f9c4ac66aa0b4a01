"""The configuration: its sections, read, checked, written.

It composes the keys that components declare. They import only `submodel.options`, not this package.
"""

from submodel.config.comments import keep_comments
from submodel.config.config import Config
from submodel.config.meaning import differences
from submodel.config.method import (
    DevicesSection,
    EngineSection,
    LocalSection,
    MergeSection,
    SchemeSection,
    ServerSection,
    TrainSection,
)
from submodel.config.reading import override, parse, read
from submodel.config.subject import (
    AxesSection,
    ClientsSection,
    DataSection,
    ModelSection,
    TaskSection,
)
from submodel.config.writing import describe, given_names, to_toml

__all__ = [
    "AxesSection",
    "ClientsSection",
    "Config",
    "DataSection",
    "DevicesSection",
    "EngineSection",
    "LocalSection",
    "MergeSection",
    "ModelSection",
    "SchemeSection",
    "ServerSection",
    "TaskSection",
    "TrainSection",
    "describe",
    "differences",
    "given_names",
    "keep_comments",
    "override",
    "parse",
    "read",
    "to_toml",
]
