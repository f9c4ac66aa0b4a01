"""What a partition is, and what it is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from submodel.data.owners import Owners
from submodel.errors import ConfigError

Positions = NDArray[np.int64]


class Partition(Protocol):
    """Which examples a client has."""

    def size(self, client: int) -> int:
        """How many examples the client has; often cheaper than listing them."""
        ...

    def indices(self, client: int) -> Positions:
        """The positions of the client's examples in the training set, ascending."""
        ...


@dataclass(frozen=True)
class Unsplit:
    """Nobody has anything here: the clients' data is elsewhere, and why it could not be split."""

    problem: ConfigError

    def size(self, client: int) -> NoReturn:  # noqa: ARG002
        """Not known here."""
        raise self.problem

    def indices(self, client: int) -> NoReturn:  # noqa: ARG002
        """Not known here."""
        raise self.problem


@dataclass(frozen=True)
class PartitionContext:
    """What is to be shared out, and among how many."""

    labels: NDArray[np.int64] | None  # of the training examples; None: targets are not labels
    total: int  # training examples
    clients: int
    seed: int
    targets: str = ""  # what they are, where they are not labels: "float32 of shape (60, 1)"
    owners: Owners | None = None  # who has which example, where the data says so

    def label_problems(self, partition: str) -> list[str]:
        """Why a partition by labels is not defined here; empty if it is.

        Args:
            partition: its name.

        >>> PartitionContext(None, 60, 6, 0, "float32 of shape (60, 1)").label_problems("dirichlet")
        ["data.partition: 'dirichlet' needs class labels, and the targets are float32 of shape \
(60, 1); use 'iid'"]
        """
        if self.labels is not None:
            return []
        targets = f", and the targets are {self.targets}" if self.targets else ""
        return [f"data.partition: {partition!r} needs class labels{targets}; use 'iid'"]

    def require_labels(self, partition: str) -> NDArray[np.int64]:
        """The labels, for partitions that go by them.

        Args:
            partition: its name, for the error where there are none.
        """
        if self.labels is None:
            raise ConfigError(self.label_problems(partition))
        return self.labels
