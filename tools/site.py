"""MkDocs hooks (mkdocs.yml) that build the site from docs/.

Pages link to files of the repository, such as `../CONTRIBUTING.md`. The site has pages for them as
well: Markdown unchanged, and sources as listings. Links to folders become text, and the diagram of
the packages is left out, as its picture is there.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside docs/ with their names on the site."""
SOURCES = ("examples/*.py", "examples/*.toml", "benchmarks/results/devices.json")
LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```$)", re.MULTILINE | re.DOTALL)
STAR = re.compile(r"(?<![\w*`])([A-Za-z]|sigma_)\*(?!\*)")
"""Star of an optimum, as in ||w*||, which Markdown would read as emphasis."""
LIST_AFTER_TEXT = re.compile(r"^((?![-*] |[|#>\s]|\d+\. ).+\n)(?=(?:- |1\. ))", re.MULTILINE)
LOST_LIST = re.compile(r"<p>[^<]*(?:<(?!/p>)[^<]*)*\n(?:[-*]|\d+\.) ")
LOG = logging.getLogger("mkdocs.plugins.site")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside docs/."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text("utf-8")
        files.append(File.generated(config, page, content=text))
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(
                File.generated(
                    config,
                    f"source/{name}.md",
                    content=_listing(name, path.read_text("utf-8")),
                    inclusion=InclusionLevel.NOT_IN_NAV,
                )
            )
    return files


def on_page_markdown(markdown: str, page: Page, files: Files, **_: Any) -> str:
    """Adapt a page to MkDocs: redirect links to files of the repository, read it as GitHub does."""
    homes = {site: source for source, site in PAGES.items()}
    home = homes.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    parts = FENCE.split(markdown)
    for number, part in enumerate(parts):
        if part.startswith("```mermaid"):
            parts[number] = ""
        elif not part.startswith("```"):
            part = LINK.sub(lambda link: _redirect(link, home, page, files), part)
            part = LIST_AFTER_TEXT.sub(r"\1\n", part)  # as GitHub reads it
            parts[number] = STAR.sub(r"\1&#42;", part)
    return "".join(parts)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Warn about lists that Markdown read as text because the empty line before them is missing."""
    for found in LOST_LIST.findall(html):
        LOG.warning("%s: a list needs an empty line before it: %s", page.file.src_uri, found[-60:])
    return html.replace("\\|", "|")  # GitHub needs the backslash in code in tables


def _redirect(link: re.Match[str], home: str, page: Page, files: Files) -> str:
    text, anchor = link["text"], link["anchor"] or ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(home), link["path"]))
    inside = target.removeprefix("docs/")
    if inside != target:
        place = inside
    elif target in PAGES:
        place = PAGES[target]
    elif files.get_file_from_path(f"source/{target}.md"):
        place = f"source/{target}.md"
    elif (ROOT / target).exists():
        return text
    else:
        return link[0]  # MkDocs reports that the target is missing
    start = posixpath.dirname(page.file.src_uri) or "."
    return f"[{text}]({posixpath.relpath(place, start)}{anchor})"


def _listing(name: str, code: str) -> str:
    language = {".py": "python", ".toml": "toml", ".json": "json"}[Path(name).suffix]
    return f"# {Path(name).name}\n\n`{name}`\n\n```{language}\n{code.rstrip()}\n```\n"
