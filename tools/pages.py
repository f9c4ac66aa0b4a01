"""Pages with generated parts between two markers: `make graph`, `make results`."""

from __future__ import annotations

from pathlib import Path

from tools.packages import ROOT

ARCHITECTURE, CONFIGURATION = ROOT / "docs/architecture.md", ROOT / "docs/configuration.md"
RESULTS, COMMANDS = ROOT / "docs/results", ROOT / "docs/commands.md"
PICTURE = ROOT / "docs/images/packages.png"


def markers(page: Path, name: str) -> tuple[str, str]:
    """Return the marker lines around a part."""
    command = "make results" if page.parent == RESULTS else "make graph"
    return f"<!-- {name}: written by {command} -->", f"<!-- end of {name} -->"


def part(page: Path, name: str) -> str:
    """Read a part of a page."""
    begin, end = markers(page, name)
    return page.read_text("utf-8").split(begin)[1].split(end)[0].strip()


def replace(page: Path, name: str, text: str) -> None:
    """Replace a part of a page."""
    begin, end = markers(page, name)
    before, _, rest = page.read_text("utf-8").partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", "utf-8")
