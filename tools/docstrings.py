"""Docstrings as the site shows them: examples as code. Griffe's extension in mkdocs.yml."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"((?:^>>> .*\n(?:^(?!\s*$).*\n?)*\n?)+)", re.MULTILINE)


class Examples(Extension):  # type: ignore[misc]
    """Lines after `>>>` become a block of code; without it, they are read as text."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of whatever has one."""
        if obj.docstring:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    r"""A docstring with its examples fenced.

    >>> fence("Add.\n\n>>> 1 + 1\n2").splitlines()
    ['Add.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[1].strip()}\n```\n", f"{text}\n").strip()
