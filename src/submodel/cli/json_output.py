"""Results for programs: one JSON object on the output, and nothing else there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def print_json(content: Mapping[str, Any]) -> None:
    """Print a result as one object.

    Args:
        content: its keys, as the command's help describes them.

    >>> print_json({"run": Path("runs/digits"), "test_loss": math.inf})
    {
     "run": "runs/digits",
     "test_loss": null
    }
    """
    print(json.dumps(plain_value(content), indent=1, allow_nan=False), flush=True)


def plain_value(value: Any) -> Any:
    """A value as JSON has it: a number that is not finite is null, a path is its text.

    Args:
        value: mappings, sequences and what may be in them.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
