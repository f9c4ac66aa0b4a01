"""Who has which examples: partitions of a training set over clients, a file for each kind.

A partition is asked for one client at a time. Where examples are few and clients many, each client
draws its own examples (``examples_per_client``), and a million registered clients cost nothing.
"""

from __future__ import annotations

from submodel.data.partitions.base import Partition, PartitionContext, Unsplit
from submodel.data.partitions.lists import ClientLists

__all__ = ["ClientLists", "Partition", "PartitionContext", "Unsplit"]
