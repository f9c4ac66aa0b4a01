"""Equal random parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pydantic import Field

from submodel.data.partitions.base import Partition, PartitionContext, Positions
from submodel.data.partitions.draws import Draws
from submodel.errors import ConfigError
from submodel.options import Count, Section
from submodel.randomness import generator


@dataclass(frozen=True)
class Iid:
    """Examples dealt out at random in equal parts, each to one client.

    >>> Iid(total=10, clients=3, seed=0).indices(0).shape
    (4,)
    """

    total: int
    clients: int
    seed: int

    class Options(Section):
        """The keys of ``iid``."""

        examples_per_client: Count | None = Field(
            None, description="let every client draw so many examples, shared with others"
        )

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> Partition:
        """Equal parts, or as many examples as each client is to draw."""
        total, clients, seed = context.total, context.clients, context.seed
        if options.examples_per_client is not None:
            return Draws(context.labels, total, options.examples_per_client, None, seed)
        if clients > total:
            raise ConfigError(
                [
                    f"clients.count: {clients} clients cannot share {total} examples, some would "
                    "have none; set data.examples_per_client to let clients share examples"
                ]
            )
        return cls(total, clients, seed)

    @cached_property
    def _order(self) -> Positions:
        return generator(self.seed, "partition").permutation(self.total)

    def size(self, client: int) -> int:
        """As many as are dealt to the client."""
        return len(range(client, self.total, self.clients))

    def indices(self, client: int) -> Positions:
        """Every ``clients``-th example of a random order."""
        return np.sort(self._order[client :: self.clients])
