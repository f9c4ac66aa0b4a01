"""Doctests are looked for where there are any: a module without one is not loaded for them."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

_PROMPT = b">>>"


class DoctestFilter:
    """Passes over what has no example of how it is used; a plugin, as it is for all folders."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """The collectors of a file."""
        collectors = yield
        if file_path.suffix != ".py" or _PROMPT in file_path.read_bytes():
            return collectors
        return [one for one in collectors if not isinstance(one, DoctestModule)]
