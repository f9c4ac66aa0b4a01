"""Every scheme, rule, granularity and engine ends a run with what it ended with before."""

from __future__ import annotations

import json

import pytest

from tests.golden.cases import CASES
from tests.golden.take import FILE, End, machine, take

KEPT = json.loads(FILE.read_text("utf-8"))
HERE = machine() == KEPT["machine"]
TOLERANCE = 2e-4
"""For the sums, on another kind of machine, as its kernels add in another order. With the plainest
(ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41) every case has other bits, and no sum moves
by more than 2e-5 (a ResNet's; others by 1e-6). Another scheme or rule moves them by 1e-3."""
ENGINES = list(dict.fromkeys(engine for engine, _ in CASES.values()))


@pytest.mark.parametrize("engine", ENGINES)
def test_runs_end_as_before(engine: str) -> None:
    names = [name for name in CASES if CASES[name][0] == engine]
    found = take(names)
    assert found.keys() == set(names)
    wrong = [name for name in names if not _same(found[name], KEPT["ends"][name])]
    assert not wrong, "\n".join(f"{n}: {KEPT['ends'][n]} -> {found[n]}" for n in wrong)


def test_every_case_is_kept_and_none_besides() -> None:
    assert KEPT["ends"].keys() == CASES.keys()


def _same(found: End, kept: End) -> bool:
    """To the bit on the kind of machine that they were taken on; else the sums, about."""
    if HERE or "refused" in found or "refused" in kept:
        return found == kept
    return bool(found["sums"] == pytest.approx(kept["sums"], rel=TOLERANCE, abs=TOLERANCE))
