"""The number of processes: chosen by the shared work and by the cost of its exchange."""

from __future__ import annotations

import os
from typing import Any

import pytest

from submodel.config import parse
from submodel.config.engine import choose_engine
from submodel.config.setup import prepare
from submodel.engines.estimate import Estimate, exchange_seconds

CASE: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8},
    "data": {"examples": 240, "test_examples": 60},
    "clients": {"count": 12, "per_round": 5, "capacities": [1]},
}


def test_the_exchange_is_that_of_the_updates_and_of_two_messages() -> None:
    setup = prepare(parse(CASE))
    weights = sum(p.numel() for p in setup.module.parameters())
    updates = 5 * weights * 4 / 2
    assert exchange_seconds(setup, 10, 2) == pytest.approx(10 * (2e-3 + 1e-9 * updates))
    masks = prepare(parse(CASE | {"scheme": {"name": "random", "granularity": "coordinate"}}))
    assert exchange_seconds(masks, 10, 2) == pytest.approx(10 * (2e-3 + 2.4e-7 * weights))


def test_processes_are_chosen_where_they_save_more_than_they_exchange(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(Estimate, "seconds", lambda *_: 100.0)

    def choice(rounds: int) -> str:
        config = parse(CASE | {"train": {"rounds": rounds}})
        return str(choose_engine(config, prepare(config)).engine.name)

    # 50 of 100 s of work are saved, which must be 30 more than the cost of rounds of 2 ms
    assert (choice(1000), choice(20_000)) == ("torchrun", "local")
