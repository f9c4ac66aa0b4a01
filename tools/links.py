"""Check a built site for broken links and for resources loaded from other hosts.

`python -m tools.links site`; MkDocs checks the Markdown sources, this module the written HTML.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements that a browser loads automatically, with the attribute of their address."""
WEB = re.compile(r"https?://[\w.-]+\.[a-z]{2,}(:\d+)?(/[^\s<>\"]*)?", re.ASCII)


class Page(HTMLParser):
    """Links and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the anchors, links and resources of a tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get("rel") not in ("canonical", "prev", "next") and tag in FETCHED:
            self.loads += [values[FETCHED[tag]]] if FETCHED[tag] in values else []


def problems(site: Path) -> list[str]:
    """List the problems of a site, one sentence each.

    Args:
        site: the built folder.
    """
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        name = path.relative_to(site)
        found += [f"{name}: loads {url}" for url in page.loads if urlsplit(url).netloc]
        found += [
            f"{name}: {reason}"
            for url in (*page.links, *page.loads)
            if (reason := _misses(url, path, pages))
        ]
    return found


def _misses(url: str, path: Path, pages: dict[Path, Page]) -> str | None:
    """Return the problem of a link, if any; external links are parsed, not followed."""
    parts = urlsplit(url)
    if parts.scheme in ("mailto", "data", "javascript"):
        return None
    if parts.scheme or parts.netloc:
        return None if WEB.fullmatch(url) else f"not an address: {url}"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return f"missing page: {url}"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"missing anchor: {url}"
    return None


def main() -> None:
    """Print the problems of a site, and fail if there are any."""
    site = Path(sys.argv[1]).resolve()
    if not (site / "index.html").is_file():
        sys.exit(f"{site}: not a site, as it has no index.html")
    if reasons := problems(site):
        sys.exit("\n".join(reasons))


if __name__ == "__main__":
    main()
