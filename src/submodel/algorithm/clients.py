"""The clients of a run: their data, here or on their own devices, and who is there in a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.data import Dataset, Examples, Partition
from submodel.model.cut import Cut, Tensors

_RECENT_CLIENTS = 256
Model = tuple[Tensors, Cut]
"""A whole model's tensors, and what is held of them."""
Present = Mapping[int, float | None]
"""The clients that are there, each with the capacity that it reported; None: as configured."""


class Clients(Protocol):
    """The clients' data, here or on their own devices."""

    @property
    def dataset(self) -> Dataset:
        """What the server has of it: shapes, classes, the test part."""
        ...

    def indices(self, client: int) -> NDArray[np.int64]:
        """The positions of the client's examples in the training set, where they are here."""
        ...

    def size(self, client: int) -> int:
        """How many examples the client has."""
        ...

    def examples(self, client: int) -> Examples:
        """The examples of one client, where they are here."""
        ...

    def labels(self, client: int) -> NDArray[np.int64]:
        """The class labels that the client has, ascending."""
        ...

    def present(self, round_: int | None) -> Present | None:
        """Who is there to take part in a round, or in the output step (None); may wait for them.

        None where all clients are there.
        """
        ...

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """What the static norms of each model see of the clients' data: rows of `norm.moments`.

        None where the data is here, or nobody can tell.
        """
        ...


@dataclass(frozen=True)
class PartitionedClients:
    """Clients whose data is here: the parts of one dataset, asked for one client at a time."""

    dataset: Dataset
    partition: Partition

    @cached_property
    def _recent(self) -> Callable[[int], NDArray[np.int64]]:
        """A round asks for the same clients several times."""
        return lru_cache(maxsize=_RECENT_CLIENTS)(self.partition.indices)

    def indices(self, client: int) -> NDArray[np.int64]:
        """The positions of the client's examples in the training set; not to be changed."""
        return self._recent(client)

    def size(self, client: int) -> int:
        """How many examples the client has."""
        return self.partition.size(client)

    def examples(self, client: int) -> Examples:
        """The examples of one client."""
        return self.dataset.train.take(torch.from_numpy(self.indices(client)))

    def labels(self, client: int) -> NDArray[np.int64]:
        """The class labels that the client has, ascending; not to be changed."""
        return self._recent_labels(client)

    @cached_property
    def _recent_labels(self) -> Callable[[int], NDArray[np.int64]]:
        return lru_cache(maxsize=_RECENT_CLIENTS)(self._labels)

    def _labels(self, client: int) -> NDArray[np.int64]:
        index = torch.from_numpy(self.indices(client))
        return np.unique(self.dataset.train.y[index].numpy())

    def present(self, round_: int | None) -> None:
        """None: everyone is there, always."""

    def moments(self, models: Sequence[Model]) -> list[Tensor | None]:
        """None: whoever evaluates takes the statistics of static norms from the examples itself."""
        return [None for _ in models]
