"""The blocks of code of the pages, and what is to be done with each.

The comment in the line before a block says it:

    <!-- NAME.py -->, <!-- NAME.toml -->    the reader saves it under this name
    <!-- run by tests/FILE.py -->           another test does
    <!-- run -->                            commands: run them, not only read their options
    <!-- run: with OPTIONS -->              and give them these as well, so that they take less
    <!-- run: after COMMAND -->             and this one first
    <!-- not run: REASON -->                nobody does; the reason is for the reader of the source

Without one, Python is run, commands are parsed and configurations are checked. Lines of usage,
which have `[OPTIONS]`, are written from the code.
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
"""The pages whose commands build on each other, as mkdocs.yml lists them."""
BLOCK = re.compile(
    r"(?:^ *<!-- (?P<marker>[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n"
    r"(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
PAGE_MARKER = re.compile(r"^<!-- blocks (run by [\w/.]+) -->$", re.MULTILINE)
PROGRAMS = ("submodel", "make", "pip", "python", "torchrun", "flwr")


@dataclass(frozen=True)
class Block:
    """A block of a page: what it says, and what the comment before it asks for."""

    page: Path
    language: str
    marker: str
    code: str

    @property
    def title(self) -> str:
        """Where it is, for people."""
        return f"{self.page.relative_to(ROOT)}: {self.code.strip().splitlines()[0][:60]}"

    @property
    def is_passed_over(self) -> bool:
        """Whether it is somebody else's to run, or nobody's."""
        return self.marker.startswith(("run by ", "not run: "))

    @property
    def file(self) -> str | None:
        """The name under which a reader saves it."""
        return self.marker if re.fullmatch(r"[\w-]+\.(py|toml)", self.marker) else None

    @property
    def source(self) -> str:
        """Its Python, with as few rounds as its comment asks for."""
        few = re.fullmatch(r"run with rounds: (\d+)", self.marker)
        return re.sub(r'"rounds": \d+', f'"rounds": {few[1]}', self.code) if few else self.code

    def commands(self) -> list[list[str]]:
        """The words of every command in it; output that it shows is none."""
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
    """All blocks of a page, from top to bottom."""
    text = page.read_text("utf-8")
    everywhere = PAGE_MARKER.search(text)
    for found in BLOCK.finditer(text):
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        marker = found["marker"] or (everywhere[1] if everywhere else "")
        yield Block(page, found["language"], marker, code)
