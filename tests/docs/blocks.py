"""The code blocks of the pages, with the way in which each is tested.

The comment in the line before a block has one of the forms `NAME.py` or `NAME.toml` (the reader
saves it under this name), `run by tests/FILE.py` (another test runs it), `run` (run the commands
instead of parsing their options), `run: with OPTIONS` (run with these options, which shorten it),
`run: after COMMAND` (run this command first) and `not run: REASON` (not tested, for the stated
reason), between `<!--` and `-->`.

Without a comment, Python is run, commands are parsed and configurations are checked. Lines of
usage, which have `[OPTIONS]`, are generated from the code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = ["first-run", "configuration", "own-module", "own-data", "compare", "sub-models"]
"""Pages whose commands build on each other, in the order of mkdocs.yml."""
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<marker>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n"
    r"(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
PAGE_MARKER = re.compile(r"^<!-- blocks (run by [\w/.]+) -->$", re.MULTILINE)
PROGRAMS = ("submodel", "make", "pip", "python", "torchrun", "flwr")


@dataclass(frozen=True)
class Block:
    """A block of a page with its comment."""

    page: Path
    language: str
    marker: str
    code: str

    @property
    def title(self) -> str:
        """Location of the block."""
        return f"{self.page.relative_to(ROOT)}: {self.code.strip().splitlines()[0][:60]}"

    @property
    def is_passed_over(self) -> bool:
        """Whether another test or none runs the block."""
        return self.marker.startswith(("run by ", "not run: "))

    @property
    def file(self) -> str | None:
        """Name under which a reader saves the block."""
        return self.marker if re.fullmatch(r"[\w-]+\.(py|toml)", self.marker) else None

    @property
    def source(self) -> str:
        """Its Python code with the number of rounds of its comment."""
        few = re.fullmatch(r"run with rounds: (\d+)", self.marker)
        return re.sub(r'"rounds": \d+', f'"rounds": {few[1]}', self.code) if few else self.code

    def commands(self) -> list[list[str]]:
        """Words of every command in it, without output."""
        if self.language not in ("", "bash"):
            return []
        lines = re.sub(r"\\\n *", "", self.code).splitlines()
        shown = any(line.startswith("$ ") for line in lines)
        lines = [line[2:] for line in lines if line.startswith("$ ")] if shown else lines
        return [
            shlex.split(re.split(r" [|>] ", line)[0], comments=True)
            for line in lines
            if line.split(" ")[0] in PROGRAMS and "[OPTIONS]" not in line
        ]


def blocks(page: Path) -> Iterator[Block]:
    """Return all blocks of a page from top to bottom."""
    text = page.read_text("utf-8")
    everywhere = PAGE_MARKER.search(text)
    for found in BLOCK.finditer(text):
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        marker = found["marker"] or (everywhere[1] if everywhere else "")
        yield Block(page, found["language"], marker, code)
