"""Who has which examples: partitions of a training set over clients, a file for each kind.

A partition is asked for one client at a time. Where examples are few and clients many, each client
draws its own examples (``examples_per_client``), and a million registered clients cost nothing.
"""

from __future__ import annotations

import numpy as np

from submodel.data.partitions.base import Partition, PartitionContext, Unsplit
from submodel.data.partitions.listed import Listed
from submodel.plugins import Kind, Offer

__all__ = ["PARTITIONS", "Listed", "Partition", "PartitionContext", "Unsplit"]


def _listed(made: object) -> object:
    """Lists of positions are a partition, too."""
    if isinstance(made, list | tuple):
        return Listed(tuple(np.sort(np.asarray(part, dtype=np.int64)) for part in made))
    return made


PARTITIONS: Kind[Partition] = Kind(
    noun="partition",
    key="data.partition",
    group="submodel.partitions",
    wants="a partition: lists of positions, or an object with size(client) and indices(client)",
    is_one=lambda made: hasattr(made, "size") and hasattr(made, "indices"),
    adapt=_listed,
    with_context=True,
    offers={
        "iid": Offer("submodel.data.partitions.iid:Iid", "equal random parts"),
        "labels": Offer(
            "submodel.data.partitions.labels:ByLabel", "L labels per client, equal shards"
        ),
        "dirichlet": Offer(
            "submodel.data.partitions.dirichlet:Dirichlet", "each label split by Dir(alpha)"
        ),
        "own": Offer("submodel.data.partitions.listed:Listed", hidden=True),
        "flwr": Offer("submodel.data.partitions.flower:Flower", "a partitioner of flwr-datasets"),
    },
)
