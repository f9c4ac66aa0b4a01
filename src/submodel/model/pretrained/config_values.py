"""The values of a config of `transformers` that may be sizes, by the path to each."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

FieldPath = tuple[str | int, ...]
"""Keys of nested tables and places in lists, from the outside to the inside."""
Changes = Mapping[FieldPath, int]

_NO_SIZES = ("_token_id", "_token_index", "_idx")
_NO_TABLES = ("id2label", "label2id", "rope_parameters", "rope_scaling", "quantization_config")


def size_fields(values: Any, path: FieldPath = ()) -> dict[FieldPath, int | None]:
    """The whole numbers of a config, and what is left open in it.

    Args:
        values: the config as a dictionary, or what is inside it.
        path: where that is.

    >>> size_fields({"n_embd": 8, "n_inner": None, "depths": [2, 3], "pad_token_id": 0})
    {('n_embd',): 8, ('n_inner',): None, ('depths', 0): 2, ('depths', 1): 3}
    """
    if isinstance(values, Mapping):
        entries: list[tuple[str | int, Any]] = [
            (key, value)
            for key, value in values.items()
            if key not in _NO_TABLES and not str(key).endswith(_NO_SIZES)
        ]
    elif isinstance(values, list):
        entries = [(place, value) for place, value in enumerate(values) if value is not None]
    else:
        return {path: values} if values is None or type(values) is int else {}
    fields: dict[FieldPath, int | None] = {}
    for key, value in entries:
        fields |= size_fields(value, (*path, key))
    return fields


def with_changes(values: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """The config with other values; what is given stays as it is.

    >>> with_changes({"text": {"width": 8, "depths": [2, 3]}}, {("text", "depths", 1): 5})
    {'text': {'width': 8, 'depths': [2, 5]}}
    """
    result: Any = deepcopy(dict(values))
    for path, value in changes.items():
        table = result
        for key in path[:-1]:
            table = table[key]
        table[path[-1]] = value
    changed_values: dict[str, Any] = result
    return changed_values


def spell_changes(changes: Changes) -> str:
    """In words.

    >>> spell_changes({("n_embd",): 4, ("depths", 1): 5})
    'n_embd = 4, depths.1 = 5'
    """
    return ", ".join(f"{'.'.join(map(str, path))} = {value}" for path, value in changes.items())
