"""Who has which examples: partitions of a training set over clients.

A partition is asked for one client at a time. Where examples are few and clients many, each client
draws its own examples (``examples_per_client``), and a million registered clients cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from submodel.errors import ConfigError
from submodel.randomness import generator

Indices = NDArray[np.int64]


class Partition(Protocol):
    """Which examples a client has."""

    def size(self, client: int) -> int:
        """How many examples the client has; often cheaper than listing them."""
        ...

    def indices(self, client: int) -> Indices:
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
class Iid:
    """Examples dealt out at random in equal parts, each to one client.

    >>> Iid(total=10, clients=3, seed=0).indices(0).shape
    (4,)
    """

    total: int
    clients: int
    seed: int

    @cached_property
    def _order(self) -> Indices:
        return generator(self.seed, "partition").permutation(self.total)

    def size(self, client: int) -> int:
        """As many as are dealt to the client."""
        return len(range(client, self.total, self.clients))

    def indices(self, client: int) -> Indices:
        """Every ``clients``-th example of a random order."""
        return np.sort(self._order[client :: self.clients])


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
        chosen = np.lexsort((rng.random(classes), -quota))[:each]
        quota[chosen] -= 1
        table[client] = np.sort(chosen)
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

    @cached_property
    def _shares(self) -> list[list[Indices]]:
        classes = int(self.labels.max()) + 1
        table = assign_labels(self.clients, classes, self.labels_per_client, self.seed)
        shares: list[list[Indices]] = [[] for _ in range(self.clients)]
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

    def indices(self, client: int) -> Indices:
        """The client's share of each of its labels."""
        return np.sort(np.concatenate(self._shares[client]))


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

    def __post_init__(self) -> None:
        if self.clients > len(self.labels):
            raise ConfigError(
                [
                    f"clients.count: {self.clients} clients cannot share {len(self.labels)} "
                    "examples, some would have none"
                ]
            )

    @cached_property
    def _owner(self) -> Indices:
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
    def _sizes(self) -> Indices:
        return np.bincount(self._owner, minlength=self.clients)

    def size(self, client: int) -> int:
        """What the draws came to."""
        return int(self._sizes[client])

    def indices(self, client: int) -> Indices:
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


@dataclass(frozen=True)
class Drawn:
    """Each client draws its own examples, of ``labels_per_client`` labels or of all.

    Clients may share examples, so the population may be far larger than the training set.
    """

    labels: NDArray[np.int64] | None
    total: int
    examples_per_client: int
    labels_per_client: int | None
    seed: int

    @cached_property
    def _members(self) -> Sequence[Indices]:
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

    def indices(self, client: int) -> Indices:
        """Drawn without replacement inside a client, from the client's key alone."""
        rng = generator(self.seed, "examples", client)
        if self.labels_per_client is None:
            pool = np.arange(self.total)
            return np.sort(rng.choice(pool, min(self.examples_per_client, self.total), False))
        chosen = rng.choice(len(self._members), self.labels_per_client, replace=False)
        share, rest = divmod(self.examples_per_client, self.labels_per_client)
        parts = []
        for position, label in enumerate(chosen):
            pool = self._members[label]
            parts.append(rng.choice(pool, min(share + (position < rest), len(pool)), False))
        return np.sort(np.concatenate(parts))


def make_partition(
    labels: NDArray[np.int64] | None,
    total: int,
    clients: int,
    labels_per_client: int | None,
    examples_per_client: int | None,
    seed: int,
) -> Partition:
    """The partition that a configuration asks for; ``labels_per_client`` None means iid.

    Raises `ConfigError` where a client would be left without examples.
    """
    if labels_per_client is not None:
        if labels is None:
            raise ConfigError(["data.partition: 'labels' needs class labels; use 'iid'"])
        counts = np.bincount(labels)
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
            shown = ", ".join(map(str, missing[:5])) + (", ..." if missing.size > 5 else "")
            begin = "; if labels begin at 1, give y - 1" if 0 in missing else ""
            raise ConfigError(
                [
                    f"data.partition: 'labels' needs examples of every label from 0 to "
                    f"{len(counts) - 1}, and there are none of {shown}{begin}; or use 'iid'"
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
    elif examples_per_client is None and clients > total:
        raise ConfigError(
            [
                f"clients.count: {clients} clients cannot share {total} examples, some would have "
                "none; set data.examples_per_client to let clients share examples"
            ]
        )
    if examples_per_client is not None:
        return Drawn(labels, total, examples_per_client, labels_per_client, seed)
    if labels_per_client is not None and labels is not None:
        return ByLabel(labels, clients, labels_per_client, seed)
    return Iid(total, clients, seed)
