"""Federated Dropout is `random` with masks of fixed size, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from submodel.schemes import Draw, Dropout, Random, units_held
from tests.support.common import tiny_setup
from tests.support.rounds import one_round


@given(
    size=st.integers(1, 70),
    capacity=st.floats(0.01, 1),
    seed=st.integers(0, 9),
    round_=st.integers(0, 99),
    client=st.integers(-1, 99),
)
def test_it_draws_what_random_with_fixed_sampling_draws(
    size: int, capacity: float, seed: int, round_: int, client: int
) -> None:
    draw = Draw(seed, round_, client)
    mask = Dropout().select("a", size, capacity, draw)
    assert mask.tobytes() == Random("fixed").select("a", size, capacity, draw).tobytes()
    assert int(mask.sum()) == units_held(capacity, size)


@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_a_run_with_it_is_a_run_of_random_with_fixed_sampling(granularity: str) -> None:
    chosen = {"granularity": granularity}
    dropout = tiny_setup("mlp", scheme={"name": "dropout", **chosen})
    fixed = tiny_setup("mlp", scheme={"name": "random", "sampling": "fixed", **chosen})
    bernoulli = tiny_setup("mlp", scheme={"name": "random", **chosen})
    assert one_round(dropout, 2) == one_round(fixed, 2) != one_round(bernoulli, 2)


def test_algorithm_1_draws_masks_of_random_size_and_dropout_does_not() -> None:
    draws = [Draw(0, r, c) for r in range(20) for c in range(5)]
    sizes = {int(Dropout().select("a", 40, 0.25, d).sum()) for d in draws}
    random = [int(Random().select("a", 40, 0.25, d).sum()) for d in draws]
    assert sizes == {10}
    assert len(set(random)) > 5
    assert abs(np.mean(random) - 10) < 5 * np.sqrt(40 * 0.25 * 0.75 / len(draws))  # 5 deviations
