"""A fixed number of labels per client (HeteroFL, FedRolex, the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from submodel.data.partitions.base import Partition, PartitionContext, Positions
from submodel.data.partitions.draws import Draws
from submodel.errors import ConfigError
from submodel.options import Count, Section
from submodel.randomness import generator

DEFAULT_LABELS = 3
"""The labels of a client where nothing is set, unless the data has fewer."""


def assign_labels(clients: int, classes: int, each: int, seed: int) -> NDArray[np.int64]:
    """Give every client exactly ``each`` different labels, every label equally often (+-1).

    Labels that still have the most clients to serve go first, ties at random: this never runs out.

    >>> table = assign_labels(clients=5, classes=4, each=2, seed=0)
    >>> table.shape, sorted(np.bincount(table.ravel()).tolist())
    ((5, 2), [2, 2, 3, 3])
    """
    rng = generator(seed, "labels")
    quota = np.full(classes, clients * each // classes)
    quota[rng.permutation(classes)[: clients * each % classes]] += 1
    table = np.empty((clients, each), dtype=np.int64)
    for client in range(clients):
        client_labels = np.lexsort((rng.random(classes), -quota))[:each]
        quota[client_labels] -= 1
        table[client] = np.sort(client_labels)
    return table


@dataclass(frozen=True)
class ByLabel:
    """Each client has exactly L labels; a label's examples are split evenly over its clients.

    This is the split of HeteroFL and FedRolex, except that theirs may give a client one label
    twice. Every example is used once.
    """

    labels: NDArray[np.int64]
    clients: int
    labels_per_client: int
    seed: int

    class Options(Section):
        """The keys of ``labels``."""

        labels_per_client: Count | None = Field(
            None, description="L, how many labels a client has (default: 3, or all if fewer)"
        )
        examples_per_client: Count | None = Field(
            None, description="let every client draw so many examples, shared with others"
        )

    @classmethod
    def problems(cls, options: Options, context: PartitionContext) -> list[str]:  # noqa: ARG003
        """Not without labels."""
        return context.label_problems("labels")

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> Partition:
        """Shards of labels; raises `ConfigError` where a client would have no examples."""
        labels = context.require_labels("labels")
        counts, examples_per_client = np.bincount(labels), options.examples_per_client
        each = options.labels_per_client or min(DEFAULT_LABELS, len(counts))
        check_label_counts(counts, context.clients, each, examples_per_client)
        if examples_per_client is not None:
            return Draws(labels, context.total, examples_per_client, each, context.seed)
        return cls(labels, context.clients, each, context.seed)

    @cached_property
    def _shares(self) -> list[list[Positions]]:
        classes = int(self.labels.max()) + 1
        table = assign_labels(self.clients, classes, self.labels_per_client, self.seed)
        shares: list[list[Positions]] = [[] for _ in range(self.clients)]
        for label in range(classes):
            members = np.flatnonzero(self.labels == label)
            members = generator(self.seed, "partition", label).permutation(members)
            holders = np.flatnonzero((table == label).any(1))
            if not len(holders):
                continue  # fewer places than classes: nobody has this label
            for holder, share in zip(holders, np.array_split(members, len(holders)), strict=True):
                shares[holder].append(share)
        return shares

    def size(self, client: int) -> int:
        """All its shares together."""
        return sum(map(len, self._shares[client]))

    def indices(self, client: int) -> Positions:
        """The client's share of each of its labels."""
        return np.sort(np.concatenate(self._shares[client]))


def check_label_counts(
    counts: NDArray[np.int64], clients: int, labels_per_client: int, examples_per_client: int | None
) -> None:
    """Raise where somebody would have no examples, ``counts`` being those of every label."""
    if labels_per_client > len(counts):
        raise ConfigError(
            [
                f"data.labels_per_client: {labels_per_client} is more than "
                f"the {len(counts)} classes; set it to {len(counts)} or less, or "
                "data.partition = 'iid'"
            ]
        )
    missing = np.flatnonzero(counts == 0)
    alone = examples_per_client is None or missing.size >= labels_per_client
    if missing.size and alone:  # somebody would have nothing but missing labels
        first_missing = ", ".join(map(str, missing[:5])) + (", ..." if missing.size > 5 else "")
        begin = "; if labels begin at 1, give y - 1" if 0 in missing else ""
        raise ConfigError(
            [
                f"data.partition: 'labels' needs examples of every label from 0 to "
                f"{len(counts) - 1}, and there are none of {first_missing}{begin}; or use 'iid'"
            ]
        )
    smallest, holders = int(counts.min()), -(-clients * labels_per_client // len(counts))
    if examples_per_client is None and not 1 <= holders <= smallest:
        raise ConfigError(
            [
                f"clients.count: {clients} clients with {labels_per_client} labels each leave "
                f"some without examples (the rarest label has {smallest}); "
                "set data.examples_per_client to let clients share examples"
            ]
        )
    if examples_per_client is not None and examples_per_client < labels_per_client:
        raise ConfigError(
            [
                f"data.examples_per_client: {examples_per_client} examples cannot show "
                f"{labels_per_client} labels"
            ]
        )
