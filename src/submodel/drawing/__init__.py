"""Common parts of tables and figures."""

from submodel.core.tables import markdown_table, text_table
from submodel.drawing.bands import (
    MOST_LINES,
    ROW_HEIGHT,
    Band,
    IntervalRow,
    draw_band,
    draw_intervals,
    shared_grid,
    sorted_rows,
    styles_of,
)
from submodel.drawing.labels import (
    amount_ticks,
    even_ticks,
    label_ends,
    log_scale,
    name_ticks,
    names_height,
    plain_number,
    short_label,
    whole_ticks,
)
from submodel.drawing.style import (
    DOUBLE,
    FAINT,
    FRAME,
    GROUND,
    INK,
    LINES,
    SINGLE,
    SMALL_TEXT,
    line_style,
    new_figure,
    save_figure,
    with_style,
)

__all__ = [
    "DOUBLE", "FAINT", "FRAME", "GROUND", "INK", "LINES", "MOST_LINES", "ROW_HEIGHT", "SINGLE",
    "SMALL_TEXT", "Band", "IntervalRow", "amount_ticks", "draw_band", "draw_intervals",
    "even_ticks", "label_ends", "line_style", "log_scale", "markdown_table", "name_ticks",
    "names_height", "new_figure", "plain_number", "save_figure", "shared_grid", "short_label",
    "sorted_rows", "styles_of", "text_table", "whole_ticks", "with_style",
]  # fmt: skip
