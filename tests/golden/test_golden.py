"""Every scheme, rule, granularity and engine ends a run as recorded.

With plain kernels (`tests.support.portable`) bit for bit on every x86-64 processor; with the usual
kernels of this machine, which users have, one case per engine and model approximately.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from submodel.config import Config, parse
from submodel.core.registry import Registry
from submodel.engines.native.library import find_compiler
from tests.golden.cases import CASES, GROUPS, NATIVE, USUAL
from tests.golden.components import KINDS, NOT_KEPT, named, write_files
from tests.golden.portable import take_portably
from tests.golden.take import FILE, End, take, take_one
from tests.support.portable import machine

pytestmark = pytest.mark.slow

KEPT = json.loads(FILE.read_text("utf-8"))
IS_PORTABLE = machine() == KEPT["machine"]
TOLERANCE = 2e-4
"""Tolerance of the sums with kernels that add in another order, of other processors, PyTorch
versions or architectures.

With the usual kernels of a processor with AVX-512 every case has other bits, and no sum moves by
more than 1.5e-5 (of a ResNet; others by 7e-6). Another scheme or rule moves them by 1e-3.
"""


@pytest.mark.parametrize("group", GROUPS)
def test_runs_end_as_before(group: str) -> None:
    found = take_portably(GROUPS[group])
    assert found.keys() == set(GROUPS[group])
    wrong = [name for name in found if not (_same if IS_PORTABLE else _alike)(found, name)]
    assert not wrong, "\n".join(f"{n}: {KEPT['ends'][n]} -> {found[n]}" for n in wrong)


@pytest.mark.parametrize("name", USUAL)
def test_runs_with_the_usual_kernels_end_about_so(name: str) -> None:
    found = take([name])
    assert _alike(found, name), f"{KEPT['ends'][name]['sums']} -> {found[name]['sums']}"


@pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", NATIVE)
def test_native_kernels_end_runs_about_so(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    end = take_one(name, {"engine": {"batching": "always", "kernels": "native"}})
    assert _alike({name: end}, name), f"{KEPT['ends'][name]['sums']} -> {end['sums']}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.key)
def test_every_name_has_a_case(kind: Registry[Any]) -> None:
    found = set().union(*(named(kind, config) for config in _trained()))
    offered = {name.partition(":")[0] for name in [*kind.names(), *kind.prefixes]}
    assert offered - found == NOT_KEPT.get(kind.key, set())


def test_every_case_is_kept_and_none_besides() -> None:
    assert KEPT["ends"].keys() == CASES.keys()
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(CASES)


@cache
def _trained() -> list[Config]:
    """Return the configurations that are not refused."""
    return [parse(CASES[n][1]) for n, end in KEPT["ends"].items() if "refused" not in end]


def _same(found: dict[str, End], name: str) -> bool:
    return bool(found[name] == KEPT["ends"][name])


def _alike(found: dict[str, End], name: str) -> bool:
    end, kept = found[name], KEPT["ends"][name]
    if "refused" in end or "refused" in kept:
        return bool(end == kept)
    return bool(end["sums"] == pytest.approx(kept["sums"], rel=TOLERANCE, abs=TOLERANCE))
