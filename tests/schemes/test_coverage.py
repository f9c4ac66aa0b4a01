"""Contract 4: rolling covers every unit equally often, Bernoulli frequencies match p."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from submodel.schemes import (
    Draw,
    Full,
    Random,
    Rolling,
    Static,
    default_windows,
    units_held,
    window_problems,
)

CAPACITIES = [1.0, 0.5, 0.25, 0.125, 1 / 16]


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    capacity=st.floats(0.01, 1),
    order=st.sampled_from(["shuffled", "sequential"]),
    epoch=st.integers(0, 3),
)
def test_rolling_covers_every_unit_equally_over_an_epoch(
    sizes: list[int], capacity: float, order: str, epoch: int
) -> None:
    axes = {str(i): size for i, size in enumerate(sizes)}
    windows = default_windows(axes)
    scheme = Rolling(windows, order)  # type: ignore[arg-type]
    for axis, size in axes.items():
        masks = [
            scheme.select(axis, size, capacity, Draw(7, epoch * windows + r, 0))
            for r in range(windows)
        ]
        assert set(np.sum(masks, axis=0).tolist()) == {units_held(capacity, size) * windows // size}


@pytest.mark.parametrize(("size", "windows"), [(64, 16), (1003, 16), (16, 16), (8, 16)])
def test_fewer_windows_than_units_still_cover_equally(size: int, windows: int) -> None:
    for capacity in CAPACITIES:
        masks = [
            Rolling(windows).select("a", size, capacity, Draw(0, r, 0)) for r in range(windows)
        ]
        assert len({int(count) for count in np.sum(masks, axis=0)}) == 1


def test_all_clients_share_the_windows_start_and_the_permutation() -> None:
    scheme = Rolling(8)
    for r in range(16):
        wide = scheme.select("a", 8, 0.5, Draw(0, r, 1))
        narrow = scheme.select("a", 8, 0.25, Draw(0, r, 2))
        assert not (narrow & ~wide).any()
        start = scheme.window(Draw(0, r, 3))
        assert wide[start]
        assert narrow[start]


def test_each_epoch_draws_its_own_permutation() -> None:
    def visits(epoch: int) -> list[int]:
        return [Rolling(64).window(Draw(0, epoch * 64 + r, 0)) for r in range(64)]

    assert sorted(visits(0)) == list(range(64))
    assert visits(0) != visits(1)
    assert [Rolling(4, "sequential").window(Draw(0, r, 0)) for r in range(6)] == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("p", [0.9, 0.5, 1 / 16])
def test_bernoulli_inclusion_frequencies_match_p(p: float) -> None:
    size, draws = 50, 2000
    total = sum(
        Random().select("a", size, p, Draw(0, r, 0)).astype(np.float64) for r in range(draws)
    )
    deviation = np.sqrt(p * (1 - p) / draws)
    # 5 standard deviations over 50 units; the draws are keyed, so this never flickers
    assert np.abs(total / draws - p).max() < 5 * deviation


def test_fixed_sampling_holds_exactly_the_share_and_varies() -> None:
    masks = [Random("fixed").select("a", 40, 0.25, Draw(0, r, 0)) for r in range(300)]
    assert {int(mask.sum()) for mask in masks} == {10}
    assert np.abs(np.mean(masks, axis=0) - 0.25).max() < 0.13


@given(capacity=st.floats(0.01, 1), smaller=st.floats(0.01, 1), size=st.integers(1, 99))
def test_static_cuts_nest(capacity: float, smaller: float, size: int) -> None:
    low, high = sorted((capacity, smaller))
    inner = Static().select("a", size, low, Draw(0, 0, 0))
    outer = Static().select("a", size, high, Draw(0, 0, 1))
    assert not (inner & ~outer).any()


def test_capacity_one_holds_everything_under_every_scheme() -> None:
    schemes = (Full(), Static(), Random(), Random("fixed"), Rolling(12), Rolling(4, "sequential"))
    for scheme in schemes:
        for r in range(12):
            assert scheme.select("a", 12, 1.0, Draw(3, r, 5)).all()


def test_draws_depend_on_seed_round_client_and_axis_and_on_nothing_else() -> None:
    def mask(seed: int, r: int, client: int, axis: str) -> bytes:
        return Random().select(axis, 64, 0.5, Draw(seed, r, client)).tobytes()

    assert mask(0, 1, 2, "a") == mask(0, 1, 2, "a")
    assert len({mask(*key) for key in [(0, 1, 2, "a"), (1, 1, 2, "a"), (0, 2, 2, "a"),
                                       (0, 1, 3, "a"), (0, 1, 2, "b")]}) == 5  # fmt: skip


def test_windows_that_cannot_cover_equally_are_refused_with_the_reason() -> None:
    assert "more than the 32 units" in window_problems(64, {"a": 16, "b": 32}, [1])[0]
    assert "do not divide" in window_problems(12, {"a": 16, "b": 32}, [1])[0]
    assert "capacity 0.125" in window_problems(4, {"a": 16}, [0.5, 0.125])[0]
