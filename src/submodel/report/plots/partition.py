"""Who has what: a row for every client, a column for every label, darker with more examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from submodel.errors import SubmodelError
from submodel.presentation.figures import new_figure
from submodel.presentation.palette import NONE_TO_MANY
from submodel.presentation.style import with_style
from submodel.presentation.ticks import whole_ticks
from submodel.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLIENTS = 1000
"""More rows than a picture has."""
MOST_NAMES = 20
"""More labels than these are not named one by one."""


@dataclass(frozen=True)
class Shares:
    """The examples of every label that each client has."""

    title: str
    counts: NDArray[np.int64]
    """A row for each client, a column for each label."""


def read_partition(paths: Sequence[Path]) -> Shares:
    """Load the data of a run and share it out as the run did.

    Args:
        paths: The folder of one run.
    """
    if len(paths) != 1:
        raise SubmodelError(f"partition: shows one run, not {len(paths)}")
    from submodel.prepare.objective import settle_clients
    from submodel.prepare.parts import split_data
    from submodel.report.partition import data_of_run, label_counts

    folder = RunFolder(paths[0])
    config = folder.config()
    dataset = data_of_run(folder, config)
    config = settle_clients(config, dataset)
    if dataset.classes is None:
        raise SubmodelError(f"{paths[0]}: its data has no labels to tell clients apart by")
    count = min(config.clients.client_count, MOST_CLIENTS)
    split = split_data(config, dataset)
    counts = label_counts(split, dataset.train.y.numpy(), dataset.classes, count)
    return Shares(f"{config.data.name}: {config.data.partition}", counts)


@with_style
def partition_figure(shares: Shares, width: float) -> Figure:
    """A picture of cells.

    Args:
        shares: Who has what.
        width: Of the figure, in inches.
    """
    from matplotlib.colors import LinearSegmentedColormap

    clients, classes = shares.counts.shape
    figure = new_figure(width, min(8.0, max(1.8, 0.9 + 0.022 * clients)))
    plot = figure.subplots()
    picture = plot.imshow(
        shares.counts, aspect="auto", vmin=0, interpolation="nearest", origin="upper",
        cmap=LinearSegmentedColormap.from_list("examples", NONE_TO_MANY),
    )  # fmt: skip
    plot.grid(visible=False)
    plot.set(xlabel="label", ylabel="client")
    plot.set_title(shares.title)
    whole_ticks(plot.yaxis)
    if classes <= MOST_NAMES:
        plot.set_xticks(range(classes))
    else:
        whole_ticks(plot.xaxis, 8)
    bar = figure.colorbar(picture, ax=plot, label="examples", fraction=0.05, pad=0.02)
    bar.outline.set_visible(False)
    whole_ticks(bar.ax.yaxis)
    return figure
