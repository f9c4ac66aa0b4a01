"""The slower parts of a page: the coverage of the model, and the partition of the data."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.config import Config
from submodel.data import Dataset
from submodel.errors import SubmodelError, plain
from submodel.report.coverage import coverage_of
from submodel.report.grouping import group_equal
from submodel.report.page.types import NAN, PageGroup, PagePartition, PageRun, pack_column
from submodel.report.partition import (
    Shares,
    count_labels,
    data_of_run,
    describe_partition,
    describe_sizes,
    share_out,
)
from submodel.runs.folder import RunFolder
from submodel.runs.holdings_file import read_model_outline

_MOST_GROUPS = 8
_MOST_CHARACTERS = 2_500_000  # of all coverages together
_PAGE = 3_900_000  # characters of curves and coverage; the charting library is 700,000 more
_MOST_PARTITIONS = 4
_MOST_CLIENTS, _MOST_LABELS = 400, 100  # rows and columns of a picture
_BINS = 5  # of targets that are numbers
_OURS = ("digits", "csv", "parquet", "text", "folder", "cifar10", "cifar100", "mnist",
         "fashion-mnist", "shakespeare")  # fmt: skip


def coverages(runs: Sequence[PageRun], groups: Sequence[PageGroup]) -> list[dict[str, Any]]:
    """The coverage of the first run of each group, or the reason why it is not shown.

    Those that would make a page too large to be sent around are left out.
    """
    results: list[dict[str, Any]] = []
    tables = [table for run in runs for table in (run.every, run.scores)]
    curves = sum(len(column) for t in tables for column in t.values() if isinstance(column, str))
    room = min(_MOST_CHARACTERS, _PAGE - curves)
    for group in groups[:_MOST_GROUPS]:
        run = runs[group.runs[0]]
        if not run.path:
            continue
        title = f"{group.label}, seed {run.seed}" if len(groups) > 1 else group.label
        content = _coverage(RunFolder(Path(run.path)))
        room -= sum(len(g["cells"]) for axis in content.get("axes", ()) for g in axis["holders"])
        if room > 0:
            results.append({"title": title, **content})
    return results


def _coverage(folder: RunFolder) -> dict[str, Any]:
    try:
        config = folder.config()
        is_known = read_model_outline(folder.outline_file) is not None
        if not is_known and (reason := _out_of_reach(config)):  # the model would be made again
            return {"reason": f"Not shown: {reason}."}
        return coverage_of(folder.path).json()
    except (SubmodelError, OSError) as error:
        return {"reason": f"Not shown: {plain(error)}"}


def partitions(runs: Sequence[PageRun]) -> list[PagePartition]:
    """The partition of the data, once for runs that share data, clients and seed."""
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
    """The reason why data is not looked for on this machine; empty if it is."""
    name = config.data.name.partition(":")[0]
    if config.engine.name == "flower":
        return "the data is on devices, and stays there"
    if name == "own":
        return "the data was given in Python, and is not in the run's folder"
    path = getattr(config.data, "path", None)
    if name in _OURS or (path is not None and Path(path).expanduser().exists()):
        return ""
    return f"{plain(config.data.name, 100)} is not on this machine, and a page fetches nothing"


def _describe(shares: Shares, title: str, places: Sequence[int]) -> PagePartition:
    clients = min(shares.clients, _MOST_CLIENTS)
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
    packed = pack_column([*counts.ravel().tolist(), NAN])  # never all the same: a text
    return PagePartition(title, places, words, clients, names, str(packed))


def _labels(data: Dataset) -> tuple[NDArray[np.int64], list[str]]:
    """The labels of examples and their names: classes, or fifths of targets that are numbers."""
    y = data.train.y.numpy()
    if data.classes is not None and data.classes <= _MOST_LABELS:
        names = data.about.names if data.about is not None else ()
        return y, [plain(names[c], 40) if c < len(names) else f"{c}" for c in range(data.classes)]
    if data.classes is None and y.dtype.kind == "f" and y.size == len(y):
        edges = np.quantile(y.ravel(), np.linspace(0, 1, _BINS + 1)[1:-1])
        bounds = [f"{edge:.3g}" for edge in edges]
        words = [f"≤ {bounds[0]}", *(f"{a} to {b}" for a, b in pairwise(bounds)), f"> {bounds[-1]}"]
        return np.searchsorted(edges, y.ravel()).astype(np.int64), words
    return np.zeros(0, np.int64), []
