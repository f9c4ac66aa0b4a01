"""The figures of studies: however many lines a panel has, their names have room."""

from __future__ import annotations

from itertools import combinations

from matplotlib.text import Annotation

from submodel.presentation.style import in_style
from submodel_lab.theory.drawing import Panel, PlotLine, panels_figure


def test_a_panel_of_many_lines_is_high_enough_for_their_names() -> None:
    lines = [
        PlotLine(f"parameter {n} from 0.5, p=0.5, no noise", [1.0, 2.0], [2.0, 1.0])
        for n in range(9)
    ]
    few = Panel("two lines", "x", "y", lines[:2])
    many = Panel("a long title that reaches over the names", "x", "y", lines)
    figure = panels_figure([few, few, many, few], "A study")
    low, high = (panels_figure(panels, "").get_figheight() for panels in ([few], [many]))
    assert low < high
    assert abs(figure.get_figheight() - (low + high)) < 0.3
    with in_style():
        figure.draw_without_rendering()
        plot = figure.axes[2]
        names = [text for text in plot.texts if isinstance(text, Annotation)]
        boxes = [name.get_window_extent() for name in names]
        frame = plot.get_window_extent()
    assert len(boxes) == 9
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.y1 <= frame.y1 + 3 for box in boxes)  # the title is above the frame
