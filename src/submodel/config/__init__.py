"""The configuration: typed, with a default and a description for every key, checked all at once."""

from submodel.config.comments import keep_comments
from submodel.config.reading import Config, describe, override, parse, read, to_toml
from submodel.config.subject import AxesChoice
from submodel.schemes.choice import SchemeChoice

__all__ = [
    "AxesChoice",
    "Config",
    "SchemeChoice",
    "describe",
    "keep_comments",
    "override",
    "parse",
    "read",
    "to_toml",
]
