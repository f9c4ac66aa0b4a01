"""20,000 cases for every reader, 2,000 for readers of whole pages: `make test-deep`."""

from __future__ import annotations

import pytest

from tests.deep.attack import attack
from tests.deep.readers import READERS


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("name", READERS)
def test_nothing_but_our_errors_comes_out(name: str) -> None:
    outcome = attack(name, range(READERS[name].cases))
    print(outcome)
    assert not outcome.wrong, "\n\n".join(outcome.wrong)
    assert outcome.refused or READERS[name].takes_what_it_can
