"""The tables, pictures and pages that commands show."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.config.reading import shorten
    from submodel.report.page.columns import finite
    from submodel.report.page.sections import PageSection
    from submodel.report.page.types import PageStudy, PageTable
    from submodel.report.page.write import write_report
    from submodel.report.plots.registry import find_figure
    from submodel.report.tables import cost_rows

__all__ = [
    "PageSection", "PageStudy", "PageTable", "cost_rows", "find_figure", "finite", "shorten",
    "write_report",
]  # fmt: skip
__getattr__ = lazily(
    __name__,
    {
        "submodel.config.reading": "shorten",
        "submodel.report.page.columns": "finite",
        "submodel.report.page.sections": "PageSection",
        "submodel.report.page.types": "PageStudy PageTable",
        "submodel.report.page.write": "write_report",
        "submodel.report.plots.registry": "find_figure",
        "submodel.report.tables": "cost_rows",
    },
)
