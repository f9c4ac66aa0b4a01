"""A hundred damaged files and messages for every reader; `make test-deep` runs 20,000."""

from __future__ import annotations

import pytest

from tests.deep.attack import attack
from tests.deep.readers import READERS
from tests.pins.store import ERRORS

CASES = 100


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_nothing_but_our_errors_comes_out(name: str) -> None:
    outcome = attack(name, range(-CASES, 0))
    assert not outcome.wrong, "\n\n".join(outcome.wrong)
    assert outcome.refused or READERS[name].takes_what_it_can
    ERRORS.check(f"reader: {name}", sorted(outcome.refused))
