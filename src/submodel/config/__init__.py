"""The configuration: typed, with a default and a description for every key, checked all at once."""

from submodel.config.method import SchemeChoice
from submodel.config.reading import Config, describe, override, parse, read, to_toml
from submodel.config.subject import AxesChoice

__all__ = [
    "AxesChoice",
    "Config",
    "SchemeChoice",
    "describe",
    "override",
    "parse",
    "read",
    "to_toml",
]
