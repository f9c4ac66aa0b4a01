"""Who has which examples: partitions of a training set over clients, a file for each kind.

A partition is asked for one client at a time. Where examples are few and clients many, each client
draws its own examples (``examples_per_client``), and a million registered clients cost nothing.
"""

from __future__ import annotations

import numpy as np

from submodel.data.partitions.base import Partition, PartitionContext, Unsplit
from submodel.data.partitions.lists import ClientLists
from submodel.plugins import Kind, Offer

__all__ = ["PARTITIONS", "ClientLists", "Partition", "PartitionContext", "Unsplit"]


def _adapt(thing: object) -> object:
    """Lists of positions are a partition, too."""
    if isinstance(thing, list | tuple):
        return ClientLists(tuple(np.sort(np.asarray(part, dtype=np.int64)) for part in thing))
    return thing


PARTITIONS: Kind[Partition] = Kind(
    noun="partition",
    key="data.partition",
    group="submodel.partitions",
    wants="a partition: lists of positions, or an object with size(client) and indices(client)",
    is_one=lambda thing: hasattr(thing, "size") and hasattr(thing, "indices"),
    adapt=_adapt,
    with_context=True,
    offers={
        "iid": Offer("submodel.data.partitions.iid:Iid", "equal random parts"),
        "labels": Offer(
            "submodel.data.partitions.labels:ByLabel", "L labels per client, equal shards"
        ),
        "dirichlet": Offer(
            "submodel.data.partitions.dirichlet:Dirichlet", "each label split by Dir(alpha)"
        ),
        "own": Offer("submodel.data.partitions.lists:ClientLists", is_hidden=True),
        "flwr": Offer("submodel.data.partitions.flower:Flower", "a partitioner of flwr-datasets"),
    },
)
