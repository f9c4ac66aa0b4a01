"""Data of runs for a page, from their folders or from records.

The coverage of the model and the partition of the data take most of the time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.comparison.records import ArmRecord, SeedRun, rows_with_costs
from submodel.config import Config, parse, to_toml
from submodel.core.errors import ConfigError, SubmodelError, plain
from submodel.data import Dataset
from submodel.model.axes.declare import pack_units
from submodel.report.coverage import coverage_of
from submodel.report.grouping import group_equal, spell_settings
from submodel.report.page.types import (
    NAN,
    PageFit,
    PageGroup,
    PagePartition,
    PageRun,
    Trouble,
    finite,
    finite_or_nan,
    pack_column,
    pack_table,
)
from submodel.report.partition import (
    Shares,
    count_labels,
    data_of_run,
    describe_partition,
    describe_sizes,
    share_out,
)
from submodel.runs.fitted import FitFolder
from submodel.runs.folder import RunFolder, read_full_scores
from submodel.runs.holdings_file import read_model_outline
from submodel.runs.metrics import Metrics, flat
from submodel.runs.outline import RunOutline, read_outline

_SCORES = ("test_", "held_out_", "train_eval_", "capacity_", "client_accuracy.", "client_loss.")
_EVERY = ("train_loss", "coverage.units", "coverage.weights", "clients", "refused", "missing")
_MOST_COLUMNS, _MOST_TROUBLES, _MOST_CLIENTS, _MOST_FITS = 60, 200, 12, 20
_MOST_GROUPS = 8
_MOST_CHARACTERS = 2_500_000  # of all coverages together
_PAGE = 3_900_000  # characters of curves and coverage; the charting library has 700,000 more
_MOST_PARTITIONS = 4
_SHOWN_CLIENTS, _SHOWN_LABELS = 400, 100  # rows and columns of a picture
_BINS = 5  # of targets that are numbers
_OURS = ("digits", "csv", "parquet", "text", "folder", "cifar10", "cifar100", "mnist",
         "fashion-mnist", "shakespeare")  # fmt: skip


def read_run(path: Path, title: str = "") -> PageRun:
    """Read the present state of a run; ``title`` is the name of its group."""
    folder = RunFolder(path)
    config, history = folder.config(), folder.metrics()
    outline = read_outline(path)
    warnings = _warnings(folder, outline, history)
    try:
        summary = folder.summary() or {}
    except SubmodelError as error:
        summary = {}
        warnings.append(plain(error))
    fits, damage = _fits(folder, str(summary.get("model_sha256", "")))
    warnings += damage
    rows = rows_with_costs(history)
    scored_rows = [row for row in rows if "test_loss" in row]
    sums = {key: sum(finite(line.get(key)) or 0.0 for line in history)
            for key in ("bytes_down", "bytes_up", "flops")}  # fmt: skip
    phases = _phases(history)
    return PageRun(
        name=plain(path.resolve().name, 100),
        path=plain(path, 300),
        seed=config.seed,
        rounds=int(history[-1]["round"]) if history else 0,
        planned_rounds=config.train.rounds,
        state=outline.phase,
        settings=spell_settings(config.model_dump()),
        toml=to_toml(config),
        model_sha256=str(summary.get("model_sha256", ""))[:64],
        every=_pack(rows, _every_keys(rows)),
        scores=_pack(scored_rows, _score_keys(scored_rows)),
        final=_final(scored_rows) | _full_scores(folder),
        totals={**sums, "seconds": sum(phases.values())},
        phases=phases,
        troubles=_troubles(history),
        warnings=warnings,
        title=title,
        fits=fits,
    )


def _final(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the scores of the last evaluated round from flat rows."""
    last = rows[-1] if rows else {}
    return {key: finite(last.get(key)) for key in _score_keys(rows)}


def _full_scores(folder: RunFolder) -> dict[str, float | None]:
    """Scores of `submodel show --full`; they take precedence over those of a round."""
    try:
        full_scores = read_full_scores(folder)
    except SubmodelError:
        return {}
    return {} if full_scores is None else _final([flat(full_scores.entries)])


def _pack(rows: Sequence[Metrics], keys: Sequence[str]) -> dict[str, str | float | int]:
    names = ("round", "bytes", "flops", "seconds", *keys)
    return pack_table({name: [finite_or_nan(row.get(name)) for row in rows] for name in names})


def _score_keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(k for row in (*rows[:1], *rows[-1:]) for k in row if k.startswith(_SCORES))
    return [k for k in keys if any(finite(row.get(k)) is not None for row in rows)][:_MOST_COLUMNS]


def _every_keys(rows: Sequence[Metrics]) -> list[str]:
    """Return the keys of rounds: loss, coverage and further ones with values, observations."""
    observed_keys = Counter(k for row in rows for k in row if k.startswith("observed."))
    keys = [k for k in _EVERY if any(row.get(k) for row in rows) or k.startswith("coverage")]
    return [*keys, *list(observed_keys)[:_MOST_COLUMNS]]


def _phases(history: Sequence[Metrics]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for line in history:
        for phase, seconds in line["seconds"].items():
            name = plain(phase, 40)
            totals[name] = totals.get(name, 0.0) + (finite(seconds) or 0.0)
    return totals


def _troubles(history: Sequence[Metrics]) -> list[Trouble]:
    """Return refused and missing updates by reason, the most frequent first."""
    cases: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for line in history:
        for kind in ("refused", "missing"):
            entries = line.get(kind, {})
            for client, reason in entries.items() if isinstance(entries, Mapping) else ():
                case = cases.setdefault((kind, plain(reason, 200)), [])
                case.append((line["round"], plain(client, 60)))
    troubles = []
    for (kind, reason), case in cases.items():
        clients = list(dict.fromkeys(client for _, client in case))[:_MOST_CLIENTS]
        troubles.append(Trouble(kind, reason, len(case), clients, case[0][0], case[-1][0]))
    return sorted(troubles, key=lambda trouble: -trouble.count)[:_MOST_TROUBLES]


def _warnings(folder: RunFolder, outline: RunOutline, history: Sequence[Metrics]) -> list[str]:
    """Return warnings of a run that is unfinished, failed or damaged."""
    warnings = []
    if outline.phase != "finished":
        rounds = history[-1]["round"] if history else 0
        extent = f"round {rounds} of {outline.rounds_planned}" if rounds else "no round is done yet"
        reason = f" ({outline.reason})" if outline.reason else ""
        warnings.append(f"{outline.phase}: {extent}{reason}")
    if damage := folder.describe_damage():
        warnings.append(f"metrics.jsonl: {plain(damage)}")
    if folder.stopped_file.is_file():
        text = folder.stopped_file.read_text("utf-8", errors="replace")
        warnings.append(f"the server stopped: {plain(text)}")
    return warnings


def _fits(folder: RunFolder, model_sha256: str) -> tuple[list[PageFit], list[str]]:
    """Return the fitted sub-models of this result, largest first, and warnings of damage."""
    fits, warnings = [], []
    for file in sorted(folder.path.glob("fit/capacity-*/fit.json"))[:_MOST_FITS]:
        try:
            capacity = float(file.parent.name.removeprefix("capacity-"))
            about = FitFolder(folder.path, capacity).result(model_sha256)
            if about is not None:
                outline = read_model_outline(folder.outline_file)
                fits.append(_fit(about, {} if outline is None else outline.axes))
        except (SubmodelError, ValueError) as error:
            warnings.append(plain(error))
    return sorted(fits, key=lambda fit: -fit.capacity), warnings


def _fit(about: Mapping[str, Any], sizes: Mapping[str, int]) -> PageFit:
    headline = "accuracy" if "accuracy" in about["score"] else "loss"
    down, up = finite(about.get("bytes_down")), finite(about.get("bytes_up"))
    units = {
        axis: places
        for axis, places in about["units"].items()
        if places and axis in sizes and 0 <= min(places) <= max(places) < sizes[axis]
    }

    def score(name: str) -> float | None:
        entries = about.get(name)
        return finite(entries.get(headline)) if isinstance(entries, Mapping) else None

    return PageFit(
        capacity=finite(about["capacity"]) or 0.0,
        headline=headline,
        before=score("score_before"),
        score=score("score"),
        global_score=score("global_score"),
        parameters=finite(about.get("parameters")),
        rounds=finite(about.get("rounds")),
        bytes=None if down is None or up is None else down + up,
        flops=finite(about.get("flops")),
        cut=plain(about.get("cut", ""), 40),
        sizes={axis: sizes[axis] for axis in units},
        units={axis: pack_units(np.array(p), sizes[axis]) for axis, p in units.items()},
    )


def runs_of_record(record: ArmRecord, title: str, folder: Path | None) -> list[PageRun]:
    """Return the runs of a record, from their folders if these still exist."""
    runs = []
    for run in record.runs:
        path = None if folder is None else folder / record.slug / f"seed-{run.seed}"
        if path is not None and _is_same(path, run):
            runs.append(read_run(path, title))
        else:
            runs.append(_run_of_record(record, run, title))
    return runs


def _is_same(path: Path, run: SeedRun) -> bool:
    """Whether a folder holds the recorded run."""
    try:
        summary = RunFolder(path).summary()
        RunFolder(path).config()
    except SubmodelError:
        return False
    return summary is not None and summary["model_sha256"] == run.model_sha256


def _run_of_record(record: ArmRecord, run: SeedRun, title: str) -> PageRun:
    values = {**record.config, "seed": run.seed}
    try:
        config = parse(values)
        values, toml = config.model_dump(), to_toml(config)
    except ConfigError:  # of an earlier version
        toml = json.dumps(values, indent=1)
    last = run.lines[-1]
    rounds = int(last.get("round", 0))
    names = dict.fromkeys(["round", "bytes", "flops", *(key for line in run.lines for key in line)])
    columns = {name: [finite_or_nan(line.get(name)) for line in run.lines] for name in names}
    return PageRun(
        name=plain(f"{record.slug}/seed-{run.seed}", 200),
        path="",
        seed=run.seed,
        rounds=rounds,
        planned_rounds=rounds,
        state="finished",
        settings=spell_settings(values),
        toml=toml,
        model_sha256=run.model_sha256[:64],
        every={"rows": 0},
        scores=pack_table(columns),
        final=_final(run.lines),
        totals={"bytes": finite(last.get("bytes")), "flops": finite(last.get("flops")),
                "seconds": finite(run.seconds)},
        warnings=["its curve was not flat at the end"] if run.is_flat is False else [],
        title=title,
    )  # fmt: skip


def coverages(runs: Sequence[PageRun], groups: Sequence[PageGroup]) -> list[dict[str, Any]]:
    """Return the coverage of the first run of each group, or the reason why it is not shown.

    Coverages beyond the size limit of a page are omitted.
    """
    results: list[dict[str, Any]] = []
    tables = [table for run in runs for table in (run.every, run.scores)]
    curves = sum(len(column) for t in tables for column in t.values() if isinstance(column, str))
    characters_left = min(_MOST_CHARACTERS, _PAGE - curves)
    for group in groups[:_MOST_GROUPS]:
        run = runs[group.runs[0]]
        if not run.path:
            continue
        title = f"{group.label}, seed {run.seed}" if len(groups) > 1 else group.label
        content = _coverage(RunFolder(Path(run.path)))
        grids = (grid for axis in content.get("axes", ()) for grid in axis["holders"])
        characters_left -= sum(len(grid["cells"]) for grid in grids)
        if characters_left > 0:
            results.append({"title": title, **content})
    return results


def _coverage(folder: RunFolder) -> dict[str, Any]:
    try:
        config = folder.config()
        is_known = read_model_outline(folder.outline_file) is not None
        if not is_known and (reason := _out_of_reach(config)):  # it would build the model
            return {"reason": f"Not shown: {reason}."}
        return coverage_of(folder.path).json()
    except (SubmodelError, OSError) as error:
        return {"reason": f"Not shown: {plain(error)}"}


def partitions(runs: Sequence[PageRun]) -> list[PagePartition]:
    """Return the partitions of data, once for runs with equal data, clients and seed."""
    places = [place for place, run in enumerate(runs) if run.path]
    keys = ("data.", "clients.count")
    groups = group_equal(
        tuple(f"{k}={v}" for k, v in runs[place].settings.items() if k.startswith(keys))
        for place in places
    )
    return [_partition([places[one] for one in group], runs) for group in groups[:_MOST_PARTITIONS]]


def _partition(places: Sequence[int], runs: Sequence[PageRun]) -> PagePartition:
    folder = RunFolder(Path(runs[places[0]].path))
    config = folder.config()
    title = f"{config.data.name}, partition {config.data.partition}"
    if reason := _out_of_reach(folder.locate(config)):
        return PagePartition(title, places, [f"Not shown: {reason}."], 0, [])
    try:
        return _describe(share_out(config, data_of_run(folder, config)), title, places)
    except (SubmodelError, OSError) as error:
        return PagePartition(title, places, [f"Not shown: {plain(error)}"], 0, [])


def _out_of_reach(config: Config) -> str:
    """Return the reason why data is not read on this machine; empty if it can be."""
    name = config.data.name.partition(":")[0]
    if config.engine.name == "flower":
        return "the data is on devices and stays there"
    if name == "own":
        return "the data was given in Python and is not in the run's folder"
    path = getattr(config.data, "path", None)
    if name in _OURS or (path is not None and Path(path).expanduser().exists()):
        return ""
    return f"{plain(config.data.name, 100)} is not on this machine, and a page downloads nothing"


def _describe(shares: Shares, title: str, places: Sequence[int]) -> PagePartition:
    clients = min(shares.clients, _SHOWN_CLIENTS)
    labels, names = _labels(shares.data)
    words = [f"{shares.clients:,} clients, {len(shares.data.train):,} training examples."]
    if clients < shares.clients:
        words.append(f"The first {clients:,} clients are shown.")
    counts: NDArray[Any]
    if names:
        counts = count_labels(shares.partition, labels, len(names), clients)
        words += [f"{line.capitalize()}." for line in describe_partition(counts)]
    else:
        counts = np.array([float(shares.partition.size(client)) for client in range(clients)])
        words.append(f"{describe_sizes(shares.partition, clients).capitalize()}.")
    packed = pack_column([*counts.ravel().tolist(), NAN])  # NaN: always packed as text
    return PagePartition(title, places, words, clients, names, str(packed))


def _labels(data: Dataset) -> tuple[NDArray[np.int64], list[str]]:
    """Return labels of examples and their names: classes, or quintiles of numeric targets."""
    y = data.train.y.numpy()
    if data.classes is not None and data.classes <= _SHOWN_LABELS:
        names = data.about.names if data.about is not None else ()
        return y, [plain(names[c], 40) if c < len(names) else f"{c}" for c in range(data.classes)]
    if data.classes is None and y.dtype.kind == "f" and y.size == len(y):
        edges = np.quantile(y.ravel(), np.linspace(0, 1, _BINS + 1)[1:-1])
        bounds = [f"{edge:.3g}" for edge in edges]
        words = [f"≤ {bounds[0]}", *(f"{a} to {b}" for a, b in pairwise(bounds)), f"> {bounds[-1]}"]
        return np.searchsorted(edges, y.ravel()).astype(np.int64), words
    return np.zeros(0, np.int64), []
