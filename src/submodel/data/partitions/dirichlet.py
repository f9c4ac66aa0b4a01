"""Each label split over the clients in proportions drawn from a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from submodel.data.partitions.base import PartitionContext, Positions
from submodel.errors import ConfigError
from submodel.options import Positive, Section
from submodel.randomness import generator


@dataclass(frozen=True)
class Dirichlet:
    """Each label's examples are split over the clients in proportions drawn from Dir(alpha).

    This is the usual definition (Yurochkin et al. 2019; Li et al. 2022): for every label k one draw
    p_k ~ Dir(alpha, ..., alpha) over the clients, client i gets the share p_k[i] of the label's
    examples. A small alpha gives skewed clients, a large one nearly iid ones. Every example is used
    once. Where others draw again until every client has enough, which may never end, a client left
    without any takes one example from the client that has the most.

    >>> split = Dirichlet(labels=np.array([0, 1] * 10), clients=4, alpha=0.1, seed=0)
    >>> sum(len(split.indices(client)) for client in range(4))
    20
    """

    labels: NDArray[np.int64]
    clients: int
    alpha: float
    seed: int

    class Options(Section):
        """The keys of ``dirichlet``."""

        alpha: Positive = Field(0.5, description="small is skewed")

    @classmethod
    def problems(cls, options: Options, context: PartitionContext) -> list[str]:  # noqa: ARG003
        """Not without labels."""
        return context.label_problems("dirichlet")

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> Self:
        """Proportions of every label."""
        labels = context.require_labels("dirichlet")
        return cls(labels, context.clients, options.alpha, context.seed)

    def __post_init__(self) -> None:
        if self.clients > len(self.labels):
            raise ConfigError(
                [
                    f"clients.count: {self.clients} clients cannot share {len(self.labels)} "
                    "examples, some would have none"
                ]
            )

    @cached_property
    def _owner(self) -> Positions:
        """Who has each example."""
        owner = np.empty(len(self.labels), dtype=np.int64)
        for label in np.unique(self.labels):
            rng = generator(self.seed, "dirichlet", int(label))
            members = rng.permutation(np.flatnonzero(self.labels == label))
            edges = np.cumsum(_dirichlet(rng, self.alpha, self.clients))[:-1] * len(members)
            edges = np.minimum(np.rint(edges).astype(np.int64), len(members))
            owner[members] = np.searchsorted(edges, np.arange(len(members)), side="right")
        sizes = np.bincount(owner, minlength=self.clients)
        for client in np.flatnonzero(sizes == 0):
            largest = int(sizes.argmax())
            rng = generator(self.seed, "dirichlet-fill", int(client))
            owner[rng.choice(np.flatnonzero(owner == largest))] = client
            sizes[largest] -= 1
            sizes[client] += 1
        return owner

    @cached_property
    def _sizes(self) -> Positions:
        return np.bincount(self._owner, minlength=self.clients)

    def size(self, client: int) -> int:
        """What the draws came to."""
        return int(self._sizes[client])

    def indices(self, client: int) -> Positions:
        """The client's share of every label."""
        return np.flatnonzero(self._owner == client)


def _dirichlet(rng: np.random.Generator, alpha: float, clients: int) -> NDArray[np.float64]:
    """One draw from Dir(alpha); where alpha is too small for floating point, its limit: one hot."""
    shares: NDArray[np.float64] = rng.dirichlet(np.full(clients, alpha))
    if np.isfinite(shares).all() and abs(shares.sum() - 1) < 1e-6:
        return shares
    shares = np.zeros(clients)
    shares[rng.integers(clients)] = 1
    return shares
