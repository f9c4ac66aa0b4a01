"""One HTML page of runs, comparisons, studies and reproductions, complete in one file.

`write_report` does all. `page_data` reads folders into plain values, `page_html` and `write_page`
turn these into a page that asks no network for anything. A server may send the same page live: give
`page_html` the address that answers with newer data.
"""

from submodel.report.page.document import page_data, page_html, write_page, write_report

__all__ = ["page_data", "page_html", "write_page", "write_report"]
