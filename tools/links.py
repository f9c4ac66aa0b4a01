"""Check a built site: every link leads somewhere, and no page fetches anything from elsewhere.

`python -m tools.links site`; MkDocs checks what pages say, this what was written.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""What a browser loads by itself, and the attribute that says from where."""
WEB = re.compile(r"https?://[\w.-]+\.[a-z]{2,}(:\d+)?(/[^\s<>\"]*)?", re.ASCII)


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag names and where it leads."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get("rel") not in ("canonical", "prev", "next") and tag in FETCHED:
            self.loads += [values[FETCHED[tag]]] if FETCHED[tag] in values else []


def problems(site: Path) -> list[str]:
    """Why a site is not whole, a sentence for each reason.

    Args:
        site: the folder that was built.
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
    """What is wrong with a link, if anything; those that leave the site are read, not followed."""
    parts = urlsplit(url)
    if parts.scheme in ("mailto", "data", "javascript"):
        return None
    if parts.scheme or parts.netloc:
        return None if WEB.fullmatch(url) else f"no address: {url}"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return f"leads nowhere: {url}"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return f"no such place: {url}"
    return None


def main() -> None:
    """Print what is wrong, and fail."""
    site = Path(sys.argv[1]).resolve()
    if not (site / "index.html").is_file():
        sys.exit(f"{site}: no site")
    if reasons := problems(site):
        sys.exit("\n".join(reasons))


if __name__ == "__main__":
    main()
