"""Who has what of the data of a run: computed again from its configuration, where that is cheap."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from submodel.config import Config
from submodel.data import Dataset, Partition
from submodel.errors import SubmodelError, plain
from submodel.prepare.objective import settle_clients
from submodel.prepare.parts import split_data
from submodel.report.page.columns import pack_column
from submodel.report.page.types import PagePartition
from submodel.report.partition import data_of_run, describe_partition, describe_sizes, label_counts
from submodel.runs.folder import RunFolder

_MOST_CLIENTS, _MOST_LABELS = 400, 100  # rows and columns of a picture
_BINS = 5  # of targets that are numbers
_OURS = ("digits", "csv", "parquet", "text", "folder", "cifar10", "cifar100", "mnist",
         "fashion-mnist", "shakespeare")  # fmt: skip


def partition_of(folder: RunFolder, runs: Sequence[int]) -> PagePartition:
    """Who has what; where the data is not at hand, that is said.

    Args:
        folder: of a run.
        runs: the places of all runs with such data and clients.
    """
    config = folder.config()
    title = f"{config.data.name}, partition {config.data.partition}"
    if reason := out_of_reach(folder.locate(config)):
        return PagePartition(title, runs, [f"Not shown: {reason}."], 0, [])
    try:
        data = data_of_run(folder, config)
        config = settle_clients(config, data)
        return _describe(config, data, split_data(config, data), title, runs)
    except (SubmodelError, OSError) as error:
        return PagePartition(title, runs, [f"Not shown: {plain(error)}"], 0, [])


def out_of_reach(config: Config) -> str:
    """Why data is not even looked for on this machine; empty if it is.

    Args:
        config: of a run.
    """
    name = config.data.name.partition(":")[0]
    if config.engine.name == "flower":
        return "the data is on devices, and stays there"
    if name == "own":
        return "the data was given in Python, and is not in the run's folder"
    path = getattr(config.data, "path", None)
    if name in _OURS or (path is not None and Path(path).expanduser().exists()):
        return ""
    return f"{plain(config.data.name, 100)} is not on this machine, and a page fetches nothing"


def _describe(
    config: Config, data: Dataset, split: Partition, title: str, runs: Sequence[int]
) -> PagePartition:
    clients = config.clients.client_count
    count = min(clients, _MOST_CLIENTS)
    labels, classes = _labels(data)
    words = [f"{clients:,} clients, {len(data.train):,} training examples."]
    if count < clients:
        words.append(f"The first {count:,} clients are shown.")
    if not classes:
        sizes = [float(split.size(client)) for client in range(count)]
        words.append(f"{describe_sizes(split, count).capitalize()}.")
        return PagePartition(title, runs, words, count, [], str(_pack_counts(np.array([sizes]))))
    counts = label_counts(split, labels, len(classes), count)
    words += [f"{line.capitalize()}." for line in describe_partition(counts)]
    return PagePartition(title, runs, words, count, classes, _pack_counts(counts))


def _pack_counts(counts: NDArray[np.float64] | NDArray[np.int64]) -> str:
    column = pack_column([*counts.ravel().tolist(), float("nan")])  # never all the same
    return str(column)


def _labels(data: Dataset) -> tuple[NDArray[np.int64], list[str]]:
    """What tells examples apart: classes, or fifths of targets that are numbers."""
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
