"""Ticks: whole rounds, few plain numbers, fitting units."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from submodel.presentation.labels import (
    amount_ticks,
    log_places,
    log_scale,
    plain_number,
    whole_ticks,
)
from submodel.presentation.style import SINGLE, in_style, new_figure


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 7, 10, 25, 50, 200, 2500])
def test_rounds_are_whole_numbers(rounds: int) -> None:
    with in_style():
        plot = new_figure(SINGLE, 2).subplots()
        plot.plot([0, rounds], [0, 1])
        plot.set_xlim(0, rounds)
        whole_ticks(plot.xaxis)
        ticks = plot.get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)
    assert sum(0 <= tick <= rounds for tick in ticks) >= 2


@given(st.floats(1e-12, 1e12), st.floats(1.2, 1e15))
def test_a_log_scale_has_a_few_different_numbers(low: float, factor: float) -> None:
    places = log_places(low, low * factor)
    assert 2 <= len(places) <= 6
    assert len({plain_number(place) for place in places}) == len(places)
    assert all(low * 0.999 <= place <= low * factor * 1.001 for place in places)


def test_numbers_of_a_log_scale_are_short_and_apart() -> None:
    with in_style():
        figure = new_figure(SINGLE, 2)
        plot = figure.subplots()
        plot.plot([100, 20000], [0.2, 3])
        log_scale(plot, "x")
        log_scale(plot)
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in plot.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert not plot.xaxis.get_minorticklocs().size


@pytest.mark.parametrize(("most", "unit"), [(900, "B"), (4.2e8, "MB"), (2e9, "GB"), (3e13, "TB")])
def test_bytes_have_a_unit_that_fits(most: float, unit: str) -> None:
    with in_style():
        figure = new_figure(SINGLE, 2)
        plot = figure.subplots()
        plot.plot([0, most], [0, 1])
        amount_ticks(plot.xaxis, most, "traffic", "B")
        figure.draw_without_rendering()
        numbers = [text.get_text() for text in plot.get_xticklabels()]
    assert plot.get_xlabel() == f"traffic ({unit})"
    assert all(len(number) <= 4 for number in numbers)
