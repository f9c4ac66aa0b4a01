"""A page as one HTML file: nothing else is loaded, and nothing in its data is taken for code."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submodel.errors import ConfigError
from submodel.files import write_text
from submodel.presentation.style import LINES, LINES_ON_DARK
from submodel.report.page.reading import page_data

if TYPE_CHECKING:
    from submodel.runs.open import Run

_SCRIPTS = ("vendor/echarts.min.js", "base.js", "curves.js", "standing.js", "coverage.js",
            "fitted.js", "details.js", "study.js", "live.js", "page.js")  # fmt: skip
_STYLES = ("page.css", "print.css")


def write_report(*runs: Run | str | Path, out: str | Path | None = None) -> Path:
    """Write one HTML page that shows what was trained; of several runs, one that compares them.

    It is one file and needs no network. A run that is under way is shown as far as it has come.

    Args:
        runs: runs, or folders of runs, comparisons, reproductions and studies, in any mixture.
        out: the file; by default ``report.html`` in the folder, and of several in the current one.

    Returns:
        The file.

    >>> import tempfile, submodel
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    >>> out = tempfile.mkdtemp()
    >>> _ = submodel.train(net, submodel.digits(), {"train": {"rounds": 2}}, out=out)
    >>> submodel.write_report(out).name
    'report.html'
    """
    folders = [Path(run) if isinstance(run, (str, Path)) else run.folder.path for run in runs]
    beside = folders[0] if len(folders) == 1 else Path()
    file = beside / "report.html" if out is None else Path(out)
    if file.is_dir():
        raise ConfigError(f"out: {file} is a folder; give the file of a page")
    data = page_data(folders)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_page(data, file)
    return file


def write_page(data: Mapping[str, Any], file: Path) -> None:
    """Write a page, of `page_data`; a file that was there is replaced as a whole."""
    write_text(file, page_html(data))


def page_html(data: Mapping[str, Any], live_url: str | None = None) -> str:
    """The page as text.

    A live page asks ``live_url`` every two seconds for newer data, as JSON of `page_data`, and
    draws itself anew where that has changed; a script may also call ``submodelPage.update(data)``.

    Args:
        data: of `page_data`.
        live_url: a path on the server that sends the page, as ``/data.json``; None: nothing is
            asked for, and the page may be opened from a file.
    """
    scripts, style = _scripts(), "\n".join([_palette(), *map(_asset, _STYLES)])
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(_hash(script) for script in scripts),
        "style-src": _hash(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        **({} if live_url is None else {"connect-src": "'self'"}),
    }
    values = {
        "policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "title": f"{data['title']} · submodel",
        "live": live_url or "",
    }
    page = _asset("template.html")
    for name, value in values.items():
        page = page.replace(f"{{{{{name}}}}}", html.escape(value), 1)
    page = page.replace("{{style}}", style, 1)
    page = page.replace("{{scripts}}", "\n".join(f"<script>{s}</script>" for s in scripts), 1)
    return page.replace("{{data}}", script_json(data), 1)  # last: it may hold any text


def script_json(data: Mapping[str, Any]) -> str:
    r"""JSON for a script element: nothing in it can end that element.

    >>> script_json({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _palette() -> str:
    """The colours of all reports, as the style sheet calls them."""
    colours = {"light": LINES, "dark": LINES_ON_DARK}
    names = [f"--{g}{i}: {c}" for g, line in colours.items() for i, c in enumerate(line)]
    return f":root {{ {'; '.join(names)} }}"


@cache
def _scripts() -> list[str]:
    library, *ours = map(_asset, _SCRIPTS)
    return [library, '"use strict";(() => {\n' + "\n".join(ours) + "\n})();"]


@cache
def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
