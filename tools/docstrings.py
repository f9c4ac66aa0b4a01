"""Griffe extension of mkdocs.yml that formats examples in docstrings as code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"((?:^>>> .*\n(?:^(?!\s*$).*\n?)*\n?)+)", re.MULTILINE)


class Examples(Extension):  # type: ignore[misc]
    """Convert lines after `>>>` to a code block, as they would be read as text."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Convert the docstring of an object."""
        if obj.docstring:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    r"""Fence the examples of a docstring.

    >>> fence("Add.\n\n>>> 1 + 1\n2").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[1].strip()}\n```\n", f"{text}\n").strip()
