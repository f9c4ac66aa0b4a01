"""The configuration: typed, with a default and a description for every key, checked all at once.

It composes the sections that components declare.
"""

from submodel.config.comments import keep_comments
from submodel.config.config import Config
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
from submodel.config.writing import describe, to_toml

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
    "keep_comments",
    "override",
    "parse",
    "read",
    "to_toml",
]
