"""A run's folder as a page shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from submodel.config import to_toml
from submodel.errors import SubmodelError, plain
from submodel.report.grouping import spell_settings
from submodel.report.page.columns import finite, pack_table
from submodel.report.page.fitted import read_fits
from submodel.report.page.types import PageRun, Trouble
from submodel.runs.folder import RunFolder
from submodel.runs.metrics import Metrics, flat
from submodel.runs.outline import RunOutline, read_outline
from submodel.runs.scoring import read_full_scores

_SCORES = ("test_", "held_out_", "train_eval_", "capacity_", "client_accuracy.", "client_loss.")
_EVERY = ("train_loss", "coverage.units", "coverage.weights", "clients", "refused", "missing")
_MOST_COLUMNS, _MOST_TROUBLES, _MOST_CLIENTS = 60, 200, 12
_NAN = float("nan")


def read_run(path: Path, title: str = "") -> PageRun:
    """A run by its folder, as far as it has come.

    Args:
        path: the folder.
        title: what its group is called, where somebody has said so.
    """
    folder = RunFolder(path)
    config, history = folder.config(), folder.metrics()
    outline = read_outline(path)
    warnings = _warnings(folder, outline, history)
    try:
        summary = folder.summary() or {}
    except SubmodelError as error:
        summary = {}
        warnings.append(plain(error))
    fits, damage = read_fits(folder, str(summary.get("model_sha256", "")))
    warnings += damage
    rows = [flat(line) for line in history]
    scored_rows = _scored_rows(rows)
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
        every=pack_table(_columns(rows, _every_keys(rows))),
        scores=pack_table(_columns(scored_rows, _score_keys(scored_rows))),
        final=final_of(scored_rows) | _full_scores(folder),
        totals={**sums, "seconds": sum(phases.values())},
        phases=phases,
        troubles=_troubles(history),
        warnings=warnings,
        title=title,
        fits=fits,
    )


def final_of(rows: Sequence[Metrics]) -> dict[str, float | None]:
    """The scores of the last evaluated round.

    Args:
        rows: the evaluated rounds, flat.
    """
    last = rows[-1] if rows else {}
    return {key: finite(last.get(key)) for key in _score_keys(rows)}


def _full_scores(folder: RunFolder) -> dict[str, float | None]:
    """What `submodel score` found, which goes before the scores of a round."""
    try:
        full_scores = read_full_scores(folder)
    except SubmodelError:
        return {}
    return {} if full_scores is None else final_of([flat(full_scores.entries)])


def _scored_rows(rows: Sequence[Metrics]) -> list[Metrics]:
    """The evaluated rounds, each with what all rounds until then cost."""
    costs = {
        "bytes": [_number(row, "bytes_down") + _number(row, "bytes_up") for row in rows],
        "flops": [_number(row, "flops") for row in rows],
        "seconds": [sum(_number(row, k) for k in row if k.startswith("seconds.")) for row in rows],
    }
    for name, values in costs.items():
        for row, total in zip(rows, accumulate(values), strict=True):
            row[name] = total
    return [row for row in rows if "test_loss" in row]


def _number(row: Metrics, key: str) -> float:
    return finite(row.get(key)) or 0.0


def _columns(rows: Sequence[Metrics], keys: Sequence[str]) -> dict[str, list[float]]:
    names = ("round", "bytes", "flops", "seconds", *keys)
    return {name: [_or_nan(finite(row.get(name))) for row in rows] for name in names}


def _or_nan(value: float | None) -> float:
    return _NAN if value is None else value


def _score_keys(rows: Sequence[Metrics]) -> list[str]:
    keys = dict.fromkeys(k for row in (*rows[:1], *rows[-1:]) for k in row if k.startswith(_SCORES))
    return [k for k in keys if any(finite(row.get(k)) is not None for row in rows)][:_MOST_COLUMNS]


def _every_keys(rows: Sequence[Metrics]) -> list[str]:
    """What most rounds have: always the loss and coverage, and what a scheme observes."""
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
    """Who was refused or missing, gathered by reason, the most frequent first."""
    cases: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for line in history:
        for kind in ("refused", "missing"):
            entries = line.get(kind, {})
            for client, reason in entries.items() if isinstance(entries, Mapping) else ():
                cases.setdefault((kind, plain(reason, 200)), []).append(
                    (line["round"], plain(client, 60))
                )
    troubles = [
        Trouble(
            kind,
            reason,
            len(case),
            list(dict.fromkeys(client for _, client in case))[:_MOST_CLIENTS],
            case[0][0],
            case[-1][0],
        )
        for (kind, reason), case in cases.items()
    ]
    return sorted(troubles, key=lambda trouble: -trouble.count)[:_MOST_TROUBLES]


def _warnings(folder: RunFolder, outline: RunOutline, history: Sequence[Metrics]) -> list[str]:
    """What a reader should know of a run: that it is under way, stopped, failed or damaged."""
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
        warnings.append(f"the server gave up: {plain(text)}")
    return warnings
