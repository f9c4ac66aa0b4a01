"""Sampling of clients: cyclic sampling visits fixed groups in turn; one group is uniform."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from submodel.algorithm.rounds import plan
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.core.randomness import permute_index
from submodel.data import Population
from submodel.runs.loop import Interruption
from tests.support.runs import SMALL, run

CYCLIC = ("cyclic", "shuffled-cyclic")


def clients(
    count: int, per_round: int, groups: int, sampling: Any = "cyclic", seed: int = 0
) -> Population:
    return Population(count, per_round, [1.0], [1.0], "fixed", seed, sampling, groups)


@given(st.integers(1, 300), st.integers(0, 1 << 40))
def test_a_keyed_permutation_is_one(size: int, seed: int) -> None:
    assert sorted(permute_index(i, size, seed, "test") for i in range(size)) == list(range(size))


def test_every_permutation_of_a_few_is_equally_likely() -> None:
    n, orders = 2400, math.factorial(4)
    drawn = Counter(tuple(permute_index(i, 4, 0, "test", e) for i in range(4)) for e in range(n))
    assert len(drawn) == orders
    squares = sum((count - n / orders) ** 2 / (n / orders) for count in drawn.values())
    assert squares < 50  # chi-square with 23 degrees of freedom: more than 50 once in 1,000


@given(st.data())
def test_groups_are_disjoint_cover_everybody_and_are_even(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 120))
    groups = data.draw(st.integers(1, count))
    population = clients(count, 1, groups, seed=data.draw(st.integers(0, 1 << 40)))
    parts = [population.members(g) for g in range(groups)]
    assert sorted(c for part in parts for c in part) == list(range(count))
    sizes = {len(part) for part in parts}
    assert max(sizes) - min(sizes) <= 1


@given(st.data())
def test_a_round_samples_from_its_group_and_a_cycle_visits_each_once(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    groups = data.draw(st.integers(1, count))
    per_round = data.draw(st.integers(1, count // groups))
    sampling = data.draw(st.sampled_from(CYCLIC))
    cycle = data.draw(st.integers(0, 1000))
    population = clients(count, per_round, groups, sampling)
    rounds = range(cycle * groups, (cycle + 1) * groups)
    assert sorted(population.group(r) for r in rounds) == list(range(groups))
    for r in rounds:
        sampled = population.sample(r)
        assert len(set(sampled)) == per_round
        assert sampled == sorted(sampled)
        assert set(sampled) <= set(population.members(population.group(r)))


def test_cyclic_goes_in_order_and_shuffled_in_a_new_one_every_cycle() -> None:
    ordered, shuffled = (clients(40, 2, 8, sampling) for sampling in CYCLIC)
    assert [ordered.group(r) for r in range(16)] == [*range(8), *range(8)]
    cycles = [tuple(shuffled.group(8 * e + r) for r in range(8)) for e in range(20)]
    assert len(set(cycles)) == 20
    assert [ordered.members(g) for g in range(8)] == [shuffled.members(g) for g in range(8)]


@pytest.mark.parametrize("sampling", CYCLIC)
def test_everybody_trains_exactly_once_per_cycle_if_groups_are_just_a_round(sampling: str) -> None:
    setting = {"count": 20, "per_round": 4, "sampling": sampling}
    setup = prepare(parse({**SMALL, "clients": setting}))
    assert setup.population.groups == 5
    for cycle in range(3):
        rounds = range(5 * cycle, 5 * cycle + 5)
        trained = [a.client for r in rounds for a in plan(setup, r)]
        assert sorted(trained) == list(range(20))


def test_within_a_group_everybody_is_equally_likely() -> None:
    population = clients(30, 3, 3)
    rounds = [population.sample(r) for r in range(1200)]
    counts = np.bincount(np.concatenate(rounds), minlength=30)
    assert np.abs(counts / 400 - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 400)


def test_who_is_sampled_follows_from_seed_and_round_alone() -> None:
    first, again = (clients(50, 3, 10, "shuffled-cyclic", seed=4) for _ in range(2))
    expected = [first.sample(r) for r in range(30)]
    assert [again.sample(r) for r in reversed(range(30))][::-1] == expected
    other = clients(50, 3, 10, "shuffled-cyclic", seed=5)
    assert [other.sample(r) for r in range(30)] != expected
    assert [other.members(g) for g in range(10)] != [first.members(g) for g in range(10)]


def test_groups_do_not_follow_the_capacities() -> None:
    """If both used one order, each of four groups would have one capacity."""
    for seed in range(20):
        levels = [1.0, 0.5, 0.25, 0.125]
        population = Population(400, 100, levels, [1, 1, 1, 1], "fixed", seed, "cyclic", 4)
        held = [population.capacity(c, 0) for c in population.members(0)]
        # hypergeometric: 25 expected, standard deviation 3.76
        assert all(abs(held.count(level) - 25) < 5 * 3.76 for level in levels)


@pytest.mark.parametrize("sampling", CYCLIC)
@pytest.mark.parametrize("per_round", [3, 20])
def test_one_group_is_uniform(sampling: str, per_round: int) -> None:
    uniform = Population(20, per_round, [1.0], [1.0], "fixed", 7)
    one = clients(20, per_round, 1, sampling, seed=7)
    assert [one.sample(r) for r in range(50)] == [uniform.sample(r) for r in range(50)]


@pytest.mark.parametrize("sampling", CYCLIC)
def test_a_round_does_not_grow_with_the_registered_clients(sampling: str) -> None:
    population = clients(1_000_000, 2, 500_000, sampling)
    population.sample(0)
    tracemalloc.start()
    start = time.process_time()
    for r in range(100):
        population.sample(r)
    seconds, (_, peak) = time.process_time() - start, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000  # a table of the clients or of the groups would take megabytes
    assert seconds < 2  # 0.007 without tracemalloc


REFUSED = {
    "clients.groups: .*sampling = cyclic": {"groups": 5},
    "clients.groups: 51 .*50": {"sampling": "cyclic", "groups": 51},
    "clients.groups: 6 .*50 .*8 .*10 .*5": {"sampling": "shuffled-cyclic", "groups": 6},
    "clients.sampling: 'cycle'": {"sampling": "cycle"},
}


@pytest.mark.slow
@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_not_defined_is_refused(reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^{reason}"):
        parse({"clients": REFUSED[reason]})


@pytest.mark.slow
def test_a_cyclic_run_trains_and_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    setting = {**SMALL["clients"], "sampling": "shuffled-cyclic", "groups": 4}
    config = parse({**SMALL, "clients": setting})

    def interrupt(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise KeyboardInterrupt

    whole = run(tmp_path / "whole", config)
    with pytest.raises(Interruption):
        run(tmp_path / "resumed", config, on_round=interrupt)
    assert run(tmp_path / "resumed", config, resume=True)["model_sha256"] == whole["model_sha256"]
    assert run(tmp_path / "uniform", parse(SMALL))["model_sha256"] != whole["model_sha256"]
