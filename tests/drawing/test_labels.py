"""Labels at the ends of lines do not overlap; ticks are whole rounds, plain numbers and units."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from submodel.drawing.bands import Band, draw_band
from submodel.drawing.labels import (
    amount_ticks,
    label_ends,
    log_places,
    log_scale,
    plain_number,
    spread_places,
    whole_ticks,
)
from submodel.drawing.style import DOUBLE, SINGLE, in_style, line_style, new_figure

label_heights = st.floats(1, 20)
labels_wished = st.lists(st.tuples(st.floats(0, 200), label_heights), min_size=1, max_size=8)


@given(labels_wished)
def test_names_keep_their_order_and_do_not_overlap(labels: list[tuple[float, float]]) -> None:
    wishes, sizes = [w for w, _ in labels], [s for _, s in labels]
    places = spread_places(wishes, sizes, 0.0, 200.0)
    order = sorted(range(len(labels)), key=lambda place: (wishes[place], place))
    for below, above in pairwise(order):
        assert places[above] - places[below] >= (sizes[above] + sizes[below]) / 2 - 1e-6
    assert all(
        s / 2 - 1e-6 <= place <= 200 - s / 2 + 1e-6 for place, s in zip(places, sizes, strict=True)
    )


@given(st.lists(st.integers(0, 15), min_size=1, max_size=8, unique=True))
def test_names_with_room_stay_where_they_belong(wishes: list[int]) -> None:
    places = [20.0 * wish for wish in wishes]
    assert spread_places(places, [10.0] * len(places), -100.0, 500.0) == pytest.approx(places)


@pytest.mark.parametrize("finals", [[0.5] * 8, [0.1, 0.11, 0.9, 0.12, 0.13], [0.3]])
@pytest.mark.parametrize("margins", [None, {"left": 0.1, "right": 0.7}])
def test_drawn_names_do_not_touch_each_other_or_a_plot(
    finals: list[float], margins: dict[str, float] | None
) -> None:
    figure = new_figure(DOUBLE, 2.2, margins)
    with in_style():
        plot = figure.subplots()
        for place, final in enumerate(finals):
            name = f"way {place}, with a name that takes two lines" if place % 2 else f"way {place}"
            draw_band(plot, Band(name, [0, 10], [[0.0, final]], *line_style(place)))
        texts = label_ends([plot])
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in texts]
    assert len(boxes) == len(finals)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.x0 > plot.get_window_extent().x1 for box in boxes)
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


@pytest.mark.parametrize("title", ["", "a title that is as long as the plot is wide, or longer"])
def test_names_of_lines_that_end_at_the_top_stay_on_the_paper_and_off_the_title(title: str) -> None:
    figure = new_figure(SINGLE, 2.0)
    with in_style():
        plot = figure.subplots()
        for place in range(3):
            name = f"way {place}, with a name that takes two lines"
            draw_band(plot, Band(name, [0, 10], [[0.0, 1.0]], *line_style(place)))
        plot.set_title(title)
        texts = label_ends([plot])
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in texts]
        headings = [text for text in plot.findobj(Text) if isinstance(text, Text) and title]
        title_boxes = [h.get_window_extent() for h in headings if h.get_text() == title]
    assert all(box.y1 <= figure.bbox.y1 for box in boxes)
    assert len(title_boxes) == bool(title)
    assert not any(box.overlaps(heading) for box in boxes for heading in title_boxes)


def test_a_line_drawn_from_right_to_left_is_named_at_its_right_end() -> None:
    figure = new_figure(DOUBLE, 2, {"left": 0.1, "right": 0.7})
    with in_style():
        plot = figure.subplots()
        draw_band(plot, Band("down", [10, 0], [[0.0, 1.0]], *line_style(0)))
        (text,) = label_ends([plot])
    bottom, top = plot.get_window_extent().y0, plot.get_window_extent().y1
    assert text.get_window_extent().y1 < (bottom + top) / 2


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
