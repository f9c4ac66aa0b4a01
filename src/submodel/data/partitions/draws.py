"""Clients that draw their own examples, and so may share them: any number of clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from submodel.data.partitions.base import Positions
from submodel.randomness import generator


@dataclass(frozen=True)
class Draws:
    """Each client draws its own examples, of ``labels_per_client`` labels or of all.

    Clients may share examples, so the population may be far larger than the training set.
    """

    labels: NDArray[np.int64] | None
    total: int
    examples_per_client: int
    labels_per_client: int | None
    seed: int

    @cached_property
    def _members(self) -> Sequence[Positions]:
        assert self.labels is not None
        return [np.flatnonzero(self.labels == k) for k in range(int(self.labels.max()) + 1)]

    def size(self, client: int) -> int:
        """How many examples a client has."""
        if self.labels_per_client is None:
            return min(self.examples_per_client, self.total)
        most = -(-self.examples_per_client // self.labels_per_client)  # of a label
        if min(map(len, self._members)) >= most:
            return self.examples_per_client
        return len(self.indices(client))

    def indices(self, client: int) -> Positions:
        """Drawn without replacement inside a client, from the client's key alone."""
        rng = generator(self.seed, "examples", client)
        if self.labels_per_client is None:
            pool = np.arange(self.total)
            return np.sort(rng.choice(pool, min(self.examples_per_client, self.total), False))
        client_labels = rng.choice(len(self._members), self.labels_per_client, replace=False)
        share, rest = divmod(self.examples_per_client, self.labels_per_client)
        parts = []
        for position, label in enumerate(client_labels):
            pool = self._members[label]
            parts.append(rng.choice(pool, min(share + (position < rest), len(pool)), False))
        return np.sort(np.concatenate(parts))
