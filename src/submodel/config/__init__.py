"""Configuration: sections, reading, writing; `prepare` makes a setup of it.

This package composes the keys that components declare. Components import only
`submodel.core.options`, not this package. Importing this package does not import PyTorch.
"""

from typing import TYPE_CHECKING

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
from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.config.setup import prepare

__all__ = [
    "AxesSection", "ClientsSection", "Config", "DataSection", "DevicesSection", "EngineSection",
    "LocalSection", "MergeSection", "ModelSection", "SchemeSection", "ServerSection",
    "TaskSection", "TrainSection", "describe", "differences", "given_names", "keep_comments",
    "override", "parse", "prepare", "read", "to_toml",
]  # fmt: skip
__getattr__ = lazily(__name__)
