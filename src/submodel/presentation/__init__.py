"""Tables and figures as all reports make them."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.presentation.bands import MOST_LINES, Band, draw_band, shared_grid, styles_of
    from submodel.presentation.figures import new_figure, save_figure
    from submodel.presentation.intervals import ROW_HEIGHT, IntervalRow, draw_intervals, sorted_rows
    from submodel.presentation.labels import label_ends, names_height, short_label
    from submodel.presentation.palette import FAINT, FRAME, GROUND, INK, LINES, line_style
    from submodel.presentation.style import DOUBLE, SINGLE, SMALL_TEXT, with_style
    from submodel.presentation.tables import markdown_table, text_table
    from submodel.presentation.ticks import (
        amount_ticks,
        even_ticks,
        log_scale,
        name_ticks,
        plain_number,
        whole_ticks,
    )

__all__ = [
    "DOUBLE", "FAINT", "FRAME", "GROUND", "INK", "LINES", "MOST_LINES", "ROW_HEIGHT", "SINGLE",
    "SMALL_TEXT", "Band", "IntervalRow", "amount_ticks", "draw_band", "draw_intervals",
    "even_ticks", "label_ends", "line_style", "log_scale", "markdown_table", "name_ticks",
    "names_height", "new_figure", "plain_number", "save_figure", "shared_grid", "short_label",
    "sorted_rows", "styles_of", "text_table", "whole_ticks", "with_style",
]  # fmt: skip
__getattr__ = lazily(
    __name__,
    {
        "submodel.presentation.bands": "MOST_LINES Band draw_band shared_grid styles_of",
        "submodel.presentation.figures": "new_figure save_figure",
        "submodel.presentation.intervals": "ROW_HEIGHT IntervalRow draw_intervals sorted_rows",
        "submodel.presentation.labels": "label_ends names_height short_label",
        "submodel.presentation.palette": "FAINT FRAME GROUND INK LINES line_style",
        "submodel.presentation.style": "DOUBLE SINGLE SMALL_TEXT with_style",
        "submodel.presentation.tables": "markdown_table text_table",
        "submodel.presentation.ticks": (
            "amount_ticks even_ticks log_scale name_ticks plain_number whole_ticks"
        ),
    },
)
