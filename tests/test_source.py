"""Rules for the source that are not visible in one place. Contract 9: nothing is unpickled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

SOURCE = sorted((Path(__file__).parent.parent / "src").rglob("*.py"))
FORBIDDEN = {
    "pickle": r"\bpickle\b|torch\.load\(|torch\.save\(|allow_pickle=True|joblib",
    "global randomness": r"np\.random\.(seed|rand|choice|shuffle|permutation)|^import random",
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_the_source_is_free_of(what: str) -> None:
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in SOURCE
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if re.search(FORBIDDEN[what], line)
    ]
    assert SOURCE
    assert not found
