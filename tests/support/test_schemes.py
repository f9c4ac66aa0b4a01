"""Every scheme of the registry is in the table of the contract tests."""

from __future__ import annotations

import pytest

from submodel.config import parse
from submodel.schemes.builtin_schemes import SCHEMES
from tests.support.schemes import (
    AT_CAPACITY_ONE,
    CASES,
    GRANULARITIES,
    VARIANTS,
    sections_of,
)


@pytest.mark.parametrize("scheme", SCHEMES.names())
def test_every_scheme_is_in_the_table(scheme: str) -> None:
    assert any(sections["scheme"]["name"] == scheme for sections in VARIANTS.values()), (
        f"say in tests/support/schemes.py what {scheme!r} needs, so that the contracts cover it"
    )


def test_the_table_names_nothing_else() -> None:
    assert {sections["scheme"]["name"] for sections in VARIANTS.values()} <= set(SCHEMES.names())
    assert GRANULARITIES.keys() | AT_CAPACITY_ONE.keys() <= VARIANTS.keys()
    for name, granularity in CASES:
        parse(sections_of(name, granularity))
