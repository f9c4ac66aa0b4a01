"""Extensions: commands, page sections and scales that other installed packages add.

A package declares them as entry points. An extension is imported when it is used; a failure to
import one is an error of its own and affects nothing else.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from submodel.core.errors import SubmodelError, wrap_errors

__all__ = ["COMMANDS", "FROM_LAB", "LAB", "PAGE_SECTIONS", "SCALES", "extensions", "load_extension"]

COMMANDS = "submodel.commands"
"""Functions for `submodel NAME`; the docstring of a function is its help."""
PAGE_SECTIONS = "submodel.page_sections"
"""Objects with the methods of `submodel.report.PageSection`."""
SCALES = "submodel.scales"
"""Objects of `submodel.comparison.ComparisonScale`, for `submodel compare --scale NAME`."""
LAB = "submodel-lab"
"""The distribution with the theory, the paper's experiments and the evidence of `advise`."""
FROM_LAB = f"comes with the laboratory: pip install {LAB}"


def extensions(group: str) -> dict[str, EntryPoint]:
    """Return the extensions of a group by name, without importing them.

    >>> extensions("submodel.no_such_group")
    {}
    """
    return {entry.name: entry for entry in sorted(entry_points(group=group))}


def load_extension(entry: EntryPoint) -> Any:
    """Import an extension; raises `SubmodelError` if its package fails.

    >>> load_extension(EntryPoint("study", "no_such_package:study", COMMANDS))
    Traceback (most recent call last):
    submodel.core.errors.SubmodelError: submodel.commands: 'study' (no_such_package:study) ...
    """
    with wrap_errors(f"{entry.group}: {entry.name!r} ({entry.value}) fails", SubmodelError):
        return entry.load()
