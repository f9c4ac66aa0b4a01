"""HTML page of runs, comparisons, studies and reproductions in one file.

`write_report` writes a page from folders. `page_data` reads folders into plain values, `page_html`
and `write_page` turn these into a page without network access. A server may send the same page
live: `page_html` then takes the address of newer data.
"""

from submodel.report.page.document import page_data, page_html, write_page, write_report

__all__ = ["page_data", "page_html", "write_page", "write_report"]
