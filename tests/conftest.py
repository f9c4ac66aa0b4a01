"""What pytest gives to tests that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.house import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A place for real processes, which are gone afterwards."""
    from tests.house import House  # it needs an extra that other tests do without

    house = House(tmp_path)
    try:
        yield house
    finally:
        house.close()
