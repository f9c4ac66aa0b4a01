"""Natural clients: everybody has what the data says is theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from submodel.data.owners import Owners
from submodel.data.partitions.base import PartitionContext, Positions
from submodel.errors import ConfigError
from submodel.options import Section


@dataclass(frozen=True)
class Natural:
    """A role, a file or a value of a column is a client, and keeps its examples."""

    owners: Owners

    @classmethod
    def configured(cls, options: Section, context: PartitionContext) -> Self:  # noqa: ARG003
        """Everyone whom the data names."""
        if context.owners is None:
            raise ConfigError(
                ["data.partition: 'natural' needs data that says whose examples are whose"]
            )
        if context.clients != len(context.owners):
            raise ConfigError(
                [
                    f"clients.count: {context.clients} given, but the data is of "
                    f"{len(context.owners)} clients; leave it out"
                ]
            )
        return cls(context.owners)

    def size(self, client: int) -> int:
        """As many as are theirs."""
        return len(self.indices(client))

    def indices(self, client: int) -> Positions:
        """Theirs."""
        return self.owners.positions(client)
