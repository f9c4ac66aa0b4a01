"""The mean of low-rank products: exact if the ranks suffice, with its error reported otherwise."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from submodel.algorithm.merge import SELECTIVE, Accumulator
from submodel.algorithm.merge.products import Products, factorise
from submodel.algorithm.round_statistics import RoundReport
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Setup, State
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.axes import declare
from submodel.model.cut import WHOLE, UnitCut
from submodel.model.zoo.low_rank import FactorPair
from tests.support.common import tiny_images
from tests.support.exchange import merge_in_threads
from tests.support.rounds import step_of

OUTPUTS, INPUTS, RANK = 7, 9, 3
PAIR = FactorPair("up", "down")
AXES = declare(
    {"up": torch.zeros(OUTPUTS, RANK), "down": torch.zeros(RANK, INPUTS), "bias": torch.zeros(2)},
    {"up": (None, "ranks"), "down": ("ranks", None)},
)


def drawn(seed: int, ranks: int = RANK) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"up": (OUTPUTS, ranks), "down": (ranks, INPUTS), "bias": (2,)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def cut_to(*units: int) -> UnitCut:
    return UnitCut(AXES, {"ranks": np.array(units)})


def merged(whole: dict[str, Tensor], updates: list[tuple[Any, dict[str, Tensor], float]]) -> Any:
    sums = Products().sums(whole, [PAIR])
    for cut, tensors, weight in updates:
        assert sums.refusal(cut, tensors, weight) is None
        sums.add(cut, tensors, weight)
    return sums.merge(), sums.notes


def test_a_product_of_few_ranks_is_factorised_exactly_and_idle_ranks_can_still_learn() -> None:
    product = PAIR.product(drawn(0, ranks=2))
    factors = factorise(product, 5, idle_norm=0.5)
    torch.testing.assert_close(factors.up @ factors.down, product, rtol=0, atol=1e-12)
    assert factors.error < 1e-12
    assert not factors.up[:, 2:].any()
    torch.testing.assert_close(factors.down[2:].norm(dim=1), torch.full((3,), 0.5).double())


def test_the_error_is_that_of_the_singular_values_left_out() -> None:
    product = torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(1)).double()
    values = torch.linalg.svdvals(product)
    for rank in range(1, OUTPUTS + 1):
        factors = factorise(product, rank)
        tail = float(values[rank:].square().sum().sqrt())
        assert factors.error == pytest.approx(tail, abs=1e-12)
        distance = float((factors.up @ factors.down - product).norm())
        assert distance == pytest.approx(tail, abs=1e-12)


def test_where_the_mean_has_few_ranks_its_product_is_exact() -> None:
    whole = drawn(0)
    left, right = whole["up"], whole["down"]
    mixing = torch.randn(3, 2, RANK, RANK, generator=torch.Generator().manual_seed(4))
    updates = [  # all products have the columns of ``left`` and the rows of ``right``
        (WHOLE, {**whole, "up": left @ m, "down": n @ right}, weight)
        for weight, (m, n) in zip((1.0, 2.0, 5.0), mixing, strict=True)
    ]
    tensors, notes = merged(whole, updates)
    mean = sum(w * PAIR.product(t) for _, t, w in updates) / 8
    torch.testing.assert_close(PAIR.product(tensors), mean, rtol=1e-6, atol=1e-6)
    assert notes["product_error"] < 1e-6
    # the mean of the factors differs
    by_factors = Accumulator(whole, SELECTIVE)
    for cut, update, weight in updates:
        by_factors.add(cut, update, weight)
    assert float((PAIR.product(by_factors.merge()) - mean).abs().max()) > 0.1


def test_of_more_ranks_the_best_are_kept_and_the_rest_is_told() -> None:
    whole, updates = drawn(0), [(WHOLE, drawn(seed), 1.0) for seed in (1, 2, 3)]
    tensors, notes = merged(whole, updates)
    mean = torch.stack([PAIR.product(t) for _, t, _ in updates]).mean(0)
    values = torch.linalg.svdvals(mean)
    tail = float(values[RANK:].square().sum().sqrt())
    assert notes["product_error"] == pytest.approx(tail, rel=1e-6)
    assert notes["product_error_share"] == pytest.approx(tail / float(mean.norm()), rel=1e-6)
    assert float((PAIR.product(tensors) - mean).norm()) == pytest.approx(tail, rel=1e-5)
    torch.testing.assert_close(tensors["bias"], sum(t["bias"] for _, t, _ in updates) / 3)
    norms = tensors["down"].norm(dim=1)
    torch.testing.assert_close(norms, values[:RANK].sqrt().float(), rtol=1e-5, atol=1e-6)


def test_ranks_that_a_client_did_not_hold_count_as_unchanged() -> None:
    whole, one, two = drawn(0), drawn(1, ranks=1), drawn(2, ranks=2)
    tensors, _ = merged(whole, [(cut_to(1), one, 1.0), (cut_to(0, 2), two, 1.0)])
    first, second = ({n: t.clone() for n, t in whole.items()} for _ in range(2))
    first["up"][:, [1]], first["down"][[1]] = one["up"], one["down"]
    second["up"][:, [0, 2]], second["down"][[0, 2]] = two["up"], two["down"]
    mean = (PAIR.product(first) + PAIR.product(second)) / 2
    best = factorise(mean, RANK)
    torch.testing.assert_close(PAIR.product(tensors), best.up @ best.down, rtol=1e-5, atol=1e-5)


def test_what_comes_back_untouched_changes_no_bit() -> None:
    whole = drawn(0)
    cuts = [cut_to(0), cut_to(1, 2), WHOLE]
    updates = [(cut, {n: cut.part(n, t).clone() for n, t in whole.items()}, 1.0) for cut in cuts]
    tensors, notes = merged(whole, updates)
    assert all(torch.equal(whole[n], t) for n, t in tensors.items())
    assert notes["product_error"] == 0


def test_neither_order_nor_processes_change_a_bit() -> None:
    whole = drawn(0)
    updates = [
        (WHOLE, drawn(1), 1.0),
        (cut_to(0, 2), drawn(2, 2), 2.0),
        (cut_to(1), drawn(3, 1), 3.0),
    ]
    (expected, _), *others = (merged(whole, list(o)) for o in itertools.permutations(updates))
    assert all(torch.equal(expected[n], t[n]) for t, _ in others for n in whole)
    halves = [Products().sums(whole, [PAIR]) for _ in range(2)]
    for number, update in enumerate(updates):
        halves[number % 2].add(*update)
    for tensors in merge_in_threads(halves):
        assert all(torch.equal(expected[n], t) for n, t in tensors.items())


def test_bad_updates_are_refused_by_name() -> None:
    sums = Products().sums(drawn(0), [PAIR])
    assert "missing or unknown" in str(sums.refusal(WHOLE, {"up": torch.ones(OUTPUTS, RANK)}))
    assert "up has shape" in str(sums.refusal(cut_to(0), drawn(1)))
    huge = {n: 1e3 * torch.ones_like(t) for n, t in drawn(1).items()}
    assert sums.refusal(WHOLE, huge) == ("up x down holds a value of size 3e+06: training diverged")


def setup_of(**sections: Any) -> Setup:
    values: dict[str, Any] = {
        "model": {"name": "own", "adapters": "lora", "adapter_rank": 4},
        "data": {"name": "own", "partition": "iid"},
        "clients": {"count": 6, "per_round": 6, "capacities": [1, 0.5]},
        "merge": {"rule": "products"},
        "local": {"lr": 0.05, "absent_labels": "keep"},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.Conv2d(6, 6, 3), nn.Flatten(), nn.Linear(96, 12), nn.Linear(12, 10)
    )
    return prepare(parse(values), net, tiny_images())


def rounds(setup: Setup, batched: bool = False, count: int = 2) -> tuple[State, RoundReport]:
    engine = BatchedEngine(setup, always=True) if batched else SerialEngine(setup)
    state = initial_state(setup)
    for _ in range(count):
        state, report = step_of(setup, state, engine)
    return state, report


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["static", "rolling", "ordered", "importance"])
@pytest.mark.parametrize(
    "model", [{}, {"adapters": None, "adapter_rank": None, "factorised": True}]
)
def test_runs_of_low_rank_models_tell_the_error_alike_on_both_engines(
    scheme: str, model: dict[str, Any]
) -> None:
    setup = setup_of(scheme={"name": scheme}, model=model)
    (one, report), (two, other) = rounds(setup), rounds(setup, batched=True)
    for pair in setup.pairs:
        torch.testing.assert_close(
            pair.product(one.tensors), pair.product(two.tensors), rtol=1e-4, atol=1e-6
        )
        start = pair.product(initial_state(setup).tensors)
        assert not torch.equal(pair.product(one.tensors), start)
    assert len(setup.pairs) == (1 if not model else 2)
    error = report.observations["product_error"]
    assert 0 <= report.observations["product_error_share"] < 1
    assert error == pytest.approx(other.observations["product_error"], rel=1e-2, abs=1e-6)


@pytest.mark.parametrize(
    ("need", "sections"),
    {
        "low-rank layers": {"model": {"adapters": None, "adapter_rank": None}},
        "server.name = 'plain' with lr = 1": {"server": {"name": "momentum"}},
        "one server": {
            "scheme": {"name": "hierarchical", "cells": 2, "every": 2},
            "clients": {"capacities": [0.5]},
        },
        "only ranks": {
            "model": {"adapter_layers": ["4"]},
            "local": {"absent_labels": "leave_out"},
        },
    }.items(),
)
def test_what_it_is_not_defined_for_is_refused(need: str, sections: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"^merge\.rule: .*{need}"):
        setup_of(**sections)
