"""Dataset and partition of a configuration, with their description."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.config import Config
from submodel.config.meaning import paths_in
from submodel.config.parts import load_data, settle_clients, split_data
from submodel.core.errors import ConfigError, DataError
from submodel.data import Dataset, Partition
from submodel.data.cache import without_fetching
from submodel.data.examples import hold_out
from submodel.drawing.style import DOUBLE, SINGLE, save_figure
from submodel.model.inputs import first_column
from submodel.report.plots.series import MOST_CLIENTS, LabelShares
from submodel.runs.data_record import data_differences, read_record
from submodel.runs.folder import RunFolder

_MOST_NAMES = 20


def data_of(config: Config) -> Dataset:
    """Load the data of a configuration, with its held-out part."""
    return hold_out(load_data(config), config.data.held_out, config.seed)


def data_of_run(folder: RunFolder, config: Config) -> Dataset:
    """Load the data of a run without downloads.

    Raises `DataError` if it is not on this machine, or if its content has changed.
    """
    there = folder.locate(config)
    with without_fetching():
        data = data_of(there)
    record = read_record(folder) if paths_in(there) else None
    if record is not None and (problems := data_differences(record.subject, data)):
        raise DataError("\n".join([f"{folder.path}: its data has changed", *problems]))
    return data


@dataclass(frozen=True)
class Shares:
    """Data and partition of a configuration with a definite number of clients."""

    config: Config
    data: Dataset
    partition: Partition

    @property
    def clients(self) -> int:
        """Number of clients."""
        return self.config.clients.client_count

    @property
    def shown(self) -> int:
        """Number of shown clients, limited by the rows of a picture."""
        return min(self.clients, MOST_CLIENTS)

    @cached_property
    def label_counts(self) -> NDArray[np.int64] | None:
        """`count_labels` of the shown clients; None without classes."""
        if self.data.classes is None:
            return None
        labels = self.data.train.y.numpy()
        return count_labels(self.partition, labels, self.data.classes, self.shown)

    @property
    def extent(self) -> str:
        """Description of the numbers of clients and of shown clients."""
        of = f", of which the first {self.shown:,} are shown" if self.shown < self.clients else ""
        return f"{self.clients:,} clients{of}"


def share_out(config: Config, data: Dataset) -> Shares:
    """Partition data over clients."""
    config = settle_clients(config, data)
    return Shares(config, data, split_data(config, data))


def count_labels(
    partition: Partition, labels: NDArray[np.int64], classes: int, clients: int
) -> NDArray[np.int64]:
    """Count the examples of each client (row) by label (column).

    >>> from submodel.data.partitions import ByLabel
    >>> labels = np.array([0, 1, 0, 1])
    >>> count_labels(ByLabel(labels, 2, 2, seed=0), labels, 2, 2).tolist()
    [[1, 1], [1, 1]]
    """
    rows = [np.bincount(labels[partition.indices(c)], minlength=classes) for c in range(clients)]
    return np.stack(rows).astype(np.int64)


def describe_data(data: Dataset) -> list[str]:
    """Describe classes, sizes and channel statistics, one line each."""
    shape = " x ".join(map(str, data.inputs))
    lines = [f"{len(data.train):,} training and {len(data.test):,} test examples of {shape}"]
    if data.held_out is not None:
        lines.append(f"{len(data.held_out):,} further examples of the training part are held out")
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
    """Return mean and deviation of the pixels before normalisation."""
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
    """Describe examples and labels per client: least, median, most.

    >>> describe_partition(np.array([[5, 0], [3, 4]]))[0]
    'examples per client: least 5, median 6, most 7'
    """
    return [_per_client("examples", counts.sum(1)), _per_client("labels", (counts > 0).sum(1))]


def describe_sizes(partition: Partition, clients: int) -> str:
    """Describe examples per client, for data without labels."""
    return _per_client("examples", np.array(_sizes(partition, clients)))


def _per_client(what: str, values: NDArray[np.int64]) -> str:
    return (
        f"{what} per client: least {int(values.min()):,}, median {np.median(values):,.9g}, "
        f"most {int(values.max()):,}"
    )


def describe_shares(shares: Shares) -> list[str]:
    """Describe data and partition in lines for the terminal."""
    config, counts = shares.config, shares.label_counts
    if counts is None:
        partition_lines = [describe_sizes(shares.partition, shares.shown)]
    else:
        partition_lines = describe_partition(counts)
    return [
        config.data.name,
        *(f"  {line}" for line in describe_data(shares.data)),
        f"partition {config.data.partition} over {shares.extent}",
        *(f"  {line}" for line in partition_lines),
    ]


def draw_shares(shares: Shares, out: Path) -> None:
    """Draw the shown clients by labels; raise `ConfigError` for data without classes."""
    from submodel.report.plots.figures import MOST_NAMES, draw_partition

    config, counts = shares.config, shares.label_counts
    if counts is None:
        raise ConfigError(f"--out: {config.data.name} has no classes to draw; omit the option")
    title = f"{config.data.name}: {config.data.partition}, {shares.extent}"
    width = SINGLE if counts.shape[1] <= MOST_NAMES else DOUBLE
    save_figure(draw_partition(LabelShares(title, counts), width), out, dpi=300)


def plain_shares(shares: Shares) -> dict[str, Any]:
    """Return a dataset and the parts of the shown clients as plain values."""
    config, data, counts = shares.config, shares.data, shares.label_counts
    return {
        "name": config.data.name,
        "inputs": list(data.inputs),
        "classes": data.classes,
        "train": len(data.train),
        "test": len(data.test),
        "held_out": 0 if data.held_out is None else len(data.held_out),
        "examples_per_client": _sizes(shares.partition, shares.shown),
        "labels_per_client": None if counts is None else counts.tolist(),
        "partition": config.data.partition,
        "clients": shares.clients,
    }


def _sizes(partition: Partition, clients: int) -> list[int]:
    return [len(partition.indices(client)) for client in range(clients)]
