"""At least 20,000 cases for every reader: `make test-deep`."""

from __future__ import annotations

import pytest

from tests.deep.attack import attack
from tests.deep.readers import READERS

CASES = 20_000


@pytest.mark.deep
@pytest.mark.parametrize("name", READERS)
def test_nothing_but_our_errors_comes_out(name: str) -> None:
    outcome = attack(name, range(CASES))
    print(outcome)
    assert not outcome.wrong, "\n\n".join(outcome.wrong)
    assert outcome.refused or name == "metrics"  # of which what can be read is taken
