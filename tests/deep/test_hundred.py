"""A hundred damaged files and messages for every reader, 25 for those of whole pages.

`make test-deep` runs 20,000.
"""

from __future__ import annotations

import pytest

from tests.deep.attack import attack
from tests.deep.readers import READERS
from tests.pins.store import ERRORS

CASES = 100
OF_PAGES = 25


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_nothing_but_our_errors_comes_out(name: str) -> None:
    is_quick = READERS[name].cases >= 20_000
    outcome = attack(name, range(-(CASES if is_quick else OF_PAGES), 0))
    assert not outcome.wrong, "\n\n".join(outcome.wrong)
    assert outcome.refused or READERS[name].takes_what_it_can
    ERRORS.check(f"reader: {name}", sorted(outcome.refused))
