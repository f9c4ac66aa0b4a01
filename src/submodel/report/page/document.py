"""Page of folders with runs, comparisons, reproductions and studies, and its data.

A title and a summary of one or two sentences describe the training and its result. The page is one
HTML file: it loads nothing else, and nothing in its data is run as code.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submodel.comparison.records import ArmRecord
from submodel.comparison.results import ComparisonResult
from submodel.comparison.statistics import HOLDS, PLUS_MINUS, number
from submodel.core.errors import ConfigError, SubmodelError
from submodel.core.extensions import FROM_LAB, PAGE_SECTIONS, extensions, load_extension
from submodel.core.files import write_text
from submodel.drawing.style import LINES, LINES_ON_DARK
from submodel.report.grouping import describe_repeats, find_results, shaping_settings
from submodel.report.page.runs import coverages, partitions, read_run, runs_of_record
from submodel.report.page.standing import form_of, group_runs, label_of, measures_of, standings
from submodel.report.page.types import (
    PageGroup,
    PageRun,
    PageSection,
    PageStudy,
    PageTable,
    Standing,
)

if TYPE_CHECKING:
    from submodel.runs.open import Run

_FORMAT = 1
_MOST_NAMES = 3  # of runs, in a warning
_PACKAGES = ("submodel", "torch", "numpy")
_HEADLINES = ("test_accuracy", "test_loss")  # the summary has the first that all runs have
_SCRIPTS = ("vendor/echarts.min.js", "base.js", "curves.js", "standing.js", "coverage.js",
            "fitted.js", "details.js", "study.js", "live.js", "page.js")  # fmt: skip
_STYLES = ("page.css", "print.css")


def write_report(*runs: Run | str | Path, out: str | Path | None = None) -> Path:
    """Write one HTML page that shows a run or compares several.

    The page is one file and needs no network. It shows the present state of a running run.

    Args:
        runs: runs, or folders of runs, comparisons, reproductions and studies, in any mixture.
        out: file to write; by default ``report.html`` in the folder, or in the current one for
            several folders.

    Returns:
        The written file.

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
    """Write the page of `page_data`; an existing file is replaced as a whole."""
    write_text(file, page_html(data))


def page_html(data: Mapping[str, Any], live_url: str | None = None) -> str:
    """Return the page as text.

    A live page polls ``live_url`` every two seconds for newer data, as JSON of `page_data`, and
    redraws the changed parts; a script may also call ``submodelPage.update(data)``.

    Args:
        data: result of `page_data`.
        live_url: path on the server of the page, such as ``/data.json``; None: the page polls
            nothing and may be opened from a file.
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
    return page.replace("{{data}}", script_json(data), 1)  # last, because it may contain any text


def script_json(data: Mapping[str, Any]) -> str:
    r"""Return JSON for a script element, in which no text can end the element.

    >>> script_json({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _palette() -> str:
    """Return the colours of all reports as variables of the style sheet."""
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


def page_data(paths: Sequence[str | Path], *, details: bool = True) -> dict[str, Any]:
    """Read the data of a page from folders, as plain values for JSON.

    Args:
        paths: folders of runs, comparisons (`submodel compare --out`), reproductions
            (`submodel reproduce --out`) and studies (`submodel study --out`), in any mixture.
        details: include data that takes a second or more to read, such as coverage; a page that is
            updated every few seconds omits it.
    """
    if not paths:
        raise SubmodelError("a page needs at least one folder")
    contents = read_folders([Path(path) for path in paths])
    runs, groups = contents.runs, group_runs(contents.runs)
    by = standings(runs, groups)
    return {
        "format": _FORMAT,
        "title": _title_of(contents, groups),
        "sentence": _sentence(contents, groups, by),
        "words": contents.words,
        "commands": contents.commands,
        "runs": [asdict(run) for run in runs],
        "groups": [asdict(group) for group in groups],
        "measures": [asdict(measure) for measure in measures_of(runs)],
        "standings": [{"label": label_of(s.measure), **asdict(s)} for s in by],
        "tables": [asdict(table) for table in contents.tables],
        "studies": [asdict(study) for study in contents.studies],
        "coverage": coverages(runs, groups) if details else None,
        "partitions": [asdict(p) for p in partitions(runs)] if details else None,
        "warnings": _warnings(contents),
        "versions": {
            "Python": platform.python_version(),
            **{name: metadata.version(name) for name in _PACKAGES},
        },
    }


@dataclass
class Contents:
    """Contents of folders, in their order."""

    runs: list[PageRun] = field(default_factory=list)
    studies: list[PageStudy] = field(default_factory=list)
    tables: list[PageTable] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # budgets
    commands: list[str] = field(default_factory=list)


def read_folders(paths: Sequence[Path]) -> Contents:
    """Read folders of runs, comparisons, reproductions and studies."""
    contents = Contents()
    for path in paths:
        _read(path, contents)
    return contents


def _sections() -> list[PageSection]:
    """Load the page sections of all installed packages."""
    return [load_extension(entry) for entry in extensions(PAGE_SECTIONS).values()]


def _read(path: Path, contents: Contents) -> None:
    if not path.is_dir():
        raise SubmodelError(f"{path}: no such folder")
    kind, places = find_results(path) or ("", [])
    if kind == "run":
        contents.runs.append(read_run(path))
    elif kind == "comparison":
        comparison = ComparisonResult.read(places[0])
        for arm in comparison.arms:
            contents.runs += runs_of_record(arm.record, arm.title, _runs_beside(places[0]))
        contents.words.append(comparison.budget)
        contents.commands.append(comparison.command)
    elif kind == "records":
        _read_records(places, contents)
    else:
        sections = _sections()
        if studies := [study for section in sections for study in section.studies(path)]:
            contents.studies += studies
        elif places:  # begun runs without records
            contents.runs += map(read_run, places)
        else:
            raise SubmodelError(
                f"{path}: not the folder of a run (config.toml), a comparison or reproduction "
                "(records) or a study (NAME.json, NAME-claims.csv"
                f"{'' if sections else f', which {FROM_LAB}'})"
            )


def _runs_beside(records: Path) -> Path | None:
    return records.parent / "runs" if records.name == "records" else None


def _read_records(files: Sequence[Path], contents: Contents) -> None:
    """Read the records of a reproduction, with titles and tables of other packages."""
    folder = files[0].parent
    records = {file.stem: ArmRecord.read(file) for file in files}
    sections = _sections()
    titles: dict[str, str] = {}
    for section in sections:
        titles.update(section.titles(records))
    for slug, record in records.items():
        contents.runs += runs_of_record(record, titles.get(slug, slug), _runs_beside(folder))
    for section in sections:
        contents.tables += section.tables(folder, records)


def _warnings(contents: Contents) -> list[str]:
    """Collect the warnings of a page; equal texts of many runs appear once."""
    warnings, names_by_text = list[str](), dict[str, list[str]]()
    for run in contents.runs:
        name = run.path or run.name
        for text in run.warnings:
            names_by_text.setdefault(text, []).append(name)
    warnings += describe_repeats(
        (run.path or run.name, (run.title, run.seed, *shaping_settings(run.settings).items()))
        for run in contents.runs
    )
    warnings += [_names(names) + f": {text}" for text, names in names_by_text.items()]
    for study in contents.studies:
        warnings += [
            f"{study.name}: trials disagree with exact values: {f}" for f in study.failures
        ]
    return warnings


def _names(names: Sequence[str]) -> str:
    """Join the first names, with the number of the others.

    >>> _names(["a", "b"]), _names(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more runs')
    """
    if len(names) <= _MOST_NAMES + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more runs"


def _sentence(contents: Contents, groups: Sequence[PageGroup], by: Sequence[Standing]) -> str:
    """Summarise the training or the studies, and the result."""
    parts = [_of_studies(contents.studies)] if contents.studies else []
    if len(groups) == 1:
        parts.append(_of_group(contents.runs, groups[0]))
    elif groups:
        parts.append(_of_groups(contents.runs, groups, by))
    return " ".join(parts)


def _title_of(contents: Contents, groups: Sequence[PageGroup]) -> str:
    """Return the title of a page."""
    runs = contents.runs
    if not runs:
        return ", ".join(study.name for study in contents.studies)
    if len(groups) == 1:
        first = runs[0]
        is_alone = len(runs) == 1 and not re.fullmatch(r"seed-\d+", Path(first.path).name)
        return first.name if is_alone else first.settings.get("name") or first.name
    data = _common(runs, "data.name")
    return f"Comparison of {len(groups)} arms" + (f" on {data}" if data else "")


def _of_group(runs: Sequence[PageRun], group: PageGroup) -> str:
    first = runs[group.runs[0]]
    text = f"{_subject(runs)} was trained {_how(runs)}"
    seeds = len({run.seed for run in runs})
    rounds = max(run.rounds for run in runs)
    text += f", {rounds:,} round{'s' if rounds != 1 else ''}"
    if rounds < first.planned_rounds:
        text += f" of {first.planned_rounds:,} so far"
    text += f", over {seeds} seeds" if seeds > 1 else ""
    key = next((k for k in _HEADLINES if all(run.final.get(k) is not None for run in runs)), None)
    if key is None:
        return f"{text}. It has not been evaluated yet."
    value = _value(key, [run.final[key] or 0.0 for run in runs])
    return f"{text}. It reached {label_of(key)} {value}." + (f" {PLUS_MINUS}" if seeds > 1 else "")


def _value(key: str, values: Sequence[float]) -> str:
    return number("accuracy" if form_of(key) == "percent" else "loss", values)


def _subject(runs: Sequence[PageRun]) -> str:
    model, data = _common(runs, "model.name"), _common(runs, "data.name")
    subject = _with_article(model) if model else "A model"
    return subject + (f" on {data}" if data else "")


def _with_article(name: str) -> str:
    """Return a name after "A" or "An", by its sound; a name without vowels is spelt out.

    >>> _with_article("mlp"), _with_article("cnn"), _with_article("resnet18")
    ('An mlp', 'A cnn', 'A resnet18')
    """
    is_spelt_out = not set(name.lower()) & set("aeiouy")
    letters = "aefhilmnorsx" if is_spelt_out else "aeio"
    return f"{'An' if name[0].lower() in letters else 'A'} {name}"


def _how(runs: Sequence[PageRun]) -> str:
    scheme, per_round = _common(runs, "scheme.name"), _common(runs, "clients.per_round")
    text = f"by the {scheme} scheme" if scheme else "by several schemes"
    if not per_round:
        return text
    if float(per_round) < 1:
        return f"{text}, {float(per_round):.0%} of the clients in a round"
    count = _common(runs, "clients.count")
    of = f" of {count}" if count else ""
    return f"{text}, {per_round.removesuffix('.0')}{of} clients in a round"


def _common(runs: Sequence[PageRun], key: str) -> str:
    values = {run.settings.get(key, "") for run in runs}
    return values.pop() if len(values) == 1 else ""


def _of_groups(runs: Sequence[PageRun], groups: Sequence[PageGroup], by: Sequence[Standing]) -> str:
    seeds = {len({runs[place].seed for place in group.runs}) for group in groups}
    least, most = min(seeds), max(seeds)
    count = f"{most}" if least == most else f"{least} to {most}"
    text = f"{_subject(runs)} was trained in {len(groups)} arms"
    text += f", each with {count} seed{'s' if most > 1 else ''}"
    standings = [s for key in _HEADLINES for s in by if s.measure == key]
    if not standings:
        return f"{text}. The arms have no common score yet."
    firsts = [s for s in standings if s.measure == standings[0].measure]
    return ". ".join([text, *(_best_of(runs, groups, standing) for standing in firsts)]) + "."


def _best_of(runs: Sequence[PageRun], groups: Sequence[PageGroup], standing: Standing) -> str:
    """Describe the best of the arms tested on the same data, and its contrasts."""
    best = groups[standing.best]
    values = [runs[place].final[standing.measure] or 0.0 for place in best.runs]
    on = f" on {standing.data}" if standing.data else ""
    text = f"Best by {label_of(standing.measure)}{on}: {best.label}, "
    text += _value(standing.measure, values)
    tests = [row for row in standing.rows if row.p is not None]
    if not tests:
        return f"{text}; too few seeds to test differences"
    behind = sum(row.verdict == HOLDS for row in tests)
    others = len(standing.rows) - 1
    which = "the other" if others == 1 else f"{behind} of the {others} others"
    if others == 1 and not behind:
        return f"{text}; a paired test does not show a difference to the other"
    verb = "are" if behind != 1 else "is"
    return f"{text}; {which} {verb} behind by a paired test"


def _of_studies(studies: Sequence[PageStudy]) -> str:
    counts: Counter[str] = Counter()
    for study in studies:
        counts.update(str(row[-1]).removesuffix(" *") for row in study.claims.rows)
    judged_counts = {verdict: count for verdict, count in counts.items() if verdict != "-"}
    total = sum(judged_counts.values())
    words = ", ".join(f"{count} {verdict}" for verdict, count in judged_counts.items())
    several = "studies judge" if len(studies) > 1 else "study judges"
    text = f"{len(studies)} {several} {total} statements: {words}."
    failures = sum(len(study.failures) for study in studies)
    return text + (f" In {failures} places trials disagree with exact values." if failures else "")
