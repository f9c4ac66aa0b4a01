"""Tables, figures and pages of results."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.config.reading import shorten
    from submodel.report.page.document import write_report
    from submodel.report.page.types import PageSection, PageStudy, PageTable, finite
    from submodel.report.plots.figure_kinds import find_figure
    from submodel.report.tables import cost_rows

__all__ = [
    "PageSection", "PageStudy", "PageTable", "cost_rows", "find_figure", "finite", "shorten",
    "write_report",
]  # fmt: skip
__getattr__ = lazily(__name__)
