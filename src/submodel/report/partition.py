"""A dataset and its partition: loaded, shared out among clients, and described."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.config import Config
from submodel.config.meaning import paths_in
from submodel.data import Dataset, Partition
from submodel.data.cache import without_fetching
from submodel.data.examples import hold_out
from submodel.errors import DataError
from submodel.model.inputs import first_column
from submodel.prepare.objective import settle_clients
from submodel.prepare.parts import load_data, split_data
from submodel.runs.data_record import data_differences, read_record
from submodel.runs.folder import RunFolder

_MOST_NAMES = 20


def data_of(config: Config) -> Dataset:
    """Load the data of a configuration, with its held-out part."""
    return hold_out(load_data(config), config.data.held_out, config.seed)


def data_of_run(folder: RunFolder, config: Config) -> Dataset:
    """Load the data of a run without fetching anything.

    Raises `DataError` where it is not on this machine, or has other content.
    """
    there = folder.locate(config)
    with without_fetching():
        data = data_of(there)
    record = read_record(folder) if paths_in(there) else None
    if record is not None and (problems := data_differences(record.subject, data)):
        raise DataError("\n".join([f"{folder.path}: its data is another now", *problems]))
    return data


@dataclass(frozen=True)
class Shares:
    """The data of a configuration and its partition; the number of clients is settled."""

    config: Config
    data: Dataset
    partition: Partition

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.config.clients.client_count

    def label_counts(self, clients: int) -> NDArray[np.int64] | None:
        """`count_labels` of the first clients; None without classes."""
        if self.data.classes is None:
            return None
        return count_labels(self.partition, self.data.train.y.numpy(), self.data.classes, clients)


def share_out(config: Config, data: Dataset) -> Shares:
    """Share data out among clients."""
    config = settle_clients(config, data)
    return Shares(config, data, split_data(config, data))


def count_labels(
    partition: Partition, labels: NDArray[np.int64], classes: int, clients: int
) -> NDArray[np.int64]:
    """Count the examples of each label (column) that each client (row) has.

    >>> from submodel.data.partitions import ByLabel
    >>> labels = np.array([0, 1, 0, 1])
    >>> count_labels(ByLabel(labels, 2, 2, seed=0), labels, 2, 2).tolist()
    [[1, 1], [1, 1]]
    """
    rows = [np.bincount(labels[partition.indices(c)], minlength=classes) for c in range(clients)]
    return np.stack(rows).astype(np.int64)


def describe_data(data: Dataset) -> list[str]:
    """Classes, sizes and channel statistics, a line each."""
    shape = " x ".join(map(str, data.inputs))
    lines = [f"{len(data.train):,} training and {len(data.test):,} test examples of {shape}"]
    if data.held_out is not None:
        lines.append(f"{len(data.held_out):,} more of the training part are held out")
    if data.classes is not None:
        counts = np.bincount(data.train.y.numpy(), minlength=data.classes)
        names = data.about.names if data.about is not None else ()
        name_list = ", ".join(names[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")
        lines.append(
            f"{data.classes} classes with {_range(counts)} training examples each"
            + (f": {name_list}" if names else "")
        )
    if data.about is not None:
        mean, deviation = _statistics(data, data.about.mean, data.about.deviation)
        lines.append(
            f"channels of the training part, in [0, 1]: mean {_numbers(mean)}, "
            f"deviation {_numbers(deviation)}"
        )
        lines.append(
            f"normalised by mean {_numbers(data.about.mean)}, "
            f"deviation {_numbers(data.about.deviation)}; source: {data.about.origin}"
        )
    return lines


def _statistics(
    data: Dataset, mean: Sequence[float], deviation: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Mean and deviation of the pixels before they were normalised."""
    means, deviations = [], []
    for channel, (centre, scale) in enumerate(zip(mean, deviation, strict=True)):
        values = first_column(data.train.x)[:, channel]
        means.append(float(values.mean()) * scale + centre)
        deviations.append(float(values.std(correction=0)) * scale)
    return means, deviations


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.4f}" for value in values)


def _range(values: NDArray[np.int64]) -> str:
    least, most = int(values.min()), int(values.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def describe_partition(counts: NDArray[np.int64]) -> list[str]:
    """Examples and labels per client: least, median, most.

    >>> describe_partition(np.array([[5, 0], [3, 4]]))[0]
    'examples per client: least 5, median 6, most 7'
    """
    return [_per_client("examples", counts.sum(1)), _per_client("labels", (counts > 0).sum(1))]


def describe_sizes(partition: Partition, clients: int) -> str:
    """Examples per client, where there are no labels to tell apart."""
    return _per_client("examples", np.array(_sizes(partition, clients)))


def _per_client(what: str, values: NDArray[np.int64]) -> str:
    return (
        f"{what} per client: least {int(values.min()):,}, median {np.median(values):,.9g}, "
        f"most {int(values.max()):,}"
    )


def plain_data(shares: Shares, counts: NDArray[np.int64] | None, clients: int) -> dict[str, Any]:
    """A dataset and the shares of the first clients, as plain values."""
    data = shares.data
    return {
        "inputs": list(data.inputs),
        "classes": data.classes,
        "train": len(data.train),
        "test": len(data.test),
        "held_out": 0 if data.held_out is None else len(data.held_out),
        "examples_per_client": _sizes(shares.partition, clients),
        "labels_per_client": None if counts is None else counts.tolist(),
    }


def _sizes(partition: Partition, clients: int) -> list[int]:
    return [len(partition.indices(client)) for client in range(clients)]
