"""Collection of doctests: modules without examples are not loaded."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule

_PROMPT = b">>>"


class DoctestFilter:
    """Skip files without examples; a plugin, so that it applies to all folders."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        """Return the collectors of a file."""
        collectors = yield
        if file_path.suffix != ".py" or _PROMPT in file_path.read_bytes():
            return collectors
        return [one for one in collectors if not isinstance(one, DoctestModule)]
