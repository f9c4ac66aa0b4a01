"""Every pin of an error has a row in a table of mistakes."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.algorithm import test_server
from tests.config import test_nothing_is_ignored as unused
from tests.config import test_reading
from tests.data import test_sources
from tests.deep.readers import READERS
from tests.pins.errors import name_of
from tests.pins.store import ERRORS
from tests.prepare import test_bad_data, test_mistakes

TABLES: dict[str, Iterable[object]] = {
    "from Python": test_mistakes.MISTAKES,
    "command": test_mistakes.COMMANDS,
    "own scheme": [f"{a}, {g}" for a in test_mistakes.ANSWERS for g in ("unit", "coordinate")],
    "reading": [*test_reading.MISTAKES.values(), "all at once"],
    "misfit": test_reading.MISFITS.values(),
    "server": test_server.MISTAKES.values(),
    "data": test_sources.MISTAKES.values(),
    "bad data": test_bad_data.BAD.values(),
    "unused in a configuration": unused.IN_A_CONFIGURATION.values(),
    "unused in a run": unused.IN_A_RUN.values(),
    "unused from Python": unused.FROM_PYTHON.values(),
    "unused at the command line": unused.AT_THE_COMMAND_LINE.values(),
    "reader": READERS,
}


@pytest.mark.parametrize("table", TABLES)
def test_the_pins_of_a_table_are_its_rows(table: str) -> None:
    ERRORS.check_names([name_of(table, row) for row in TABLES[table]], f"{table}: ")
