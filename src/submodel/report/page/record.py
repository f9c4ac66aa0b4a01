"""Runs of which a record is left: a comparison's or a reproduction's, without their folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from submodel.config import parse, to_toml
from submodel.errors import ConfigError, SubmodelError, plain
from submodel.experiments.records import SeedRun, VariantRecord
from submodel.report.grouping import spell_settings
from submodel.report.page.columns import finite, pack_table
from submodel.report.page.run import final_of, read_run
from submodel.report.page.types import PageRun
from submodel.runs.folder import RunFolder

_NAN = float("nan")


def runs_of_record(record: VariantRecord, title: str, folder: Path | None) -> list[PageRun]:
    """The runs of a record: by their folders, where these are still there; else what is kept.

    Args:
        record: of a way or variant.
        title: what it is called.
        folder: where the folders of all runs are, ``SLUG/seed-N``; None: nowhere.
    """
    runs = []
    for run in record.runs:
        path = None if folder is None else folder / record.slug / f"seed-{run.seed}"
        if path is not None and _is_same(path, run):
            runs.append(read_run(path, title))
        else:
            runs.append(_from_record(record, run, title))
    return runs


def _is_same(path: Path, run: SeedRun) -> bool:
    """Whether a folder holds the run that was recorded."""
    try:
        summary = RunFolder(path).summary()
        RunFolder(path).config()
    except SubmodelError:
        return False
    return summary is not None and summary["model_sha256"] == run.model_sha256


def _from_record(record: VariantRecord, run: SeedRun, title: str) -> PageRun:
    values = {**record.config, "seed": run.seed}
    try:
        config = parse(values)
        values, toml = config.model_dump(), to_toml(config)
    except ConfigError:  # of an earlier version
        toml = json.dumps(values, indent=1)
    last = run.lines[-1]
    rounds = int(last.get("round", 0))
    names = dict.fromkeys(key for line in run.lines for key in line)
    columns = {name: _column(run.lines, name) for name in ("round", "bytes", "flops", *names)}
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
        final=final_of(run.lines),
        totals={"bytes": finite(last.get("bytes")), "flops": finite(last.get("flops")),
                "seconds": finite(run.seconds)},
        warnings=["its curve was not flat at the end"] if run.is_flat is False else [],
        title=title,
    )  # fmt: skip


def _column(lines: Sequence[dict[str, float]], name: str) -> list[float]:
    return [value if (value := finite(line.get(name))) is not None else _NAN for line in lines]
