"""The configuration: its sections, read, checked, written.

It composes the keys that components declare. They import only `submodel.options`, not this package.
"""

from submodel.config.meaning import differences
from submodel.config.reading import override, parse, read
from submodel.config.sections import (
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
from submodel.config.writing import describe, given_names, keep_comments, to_toml

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
