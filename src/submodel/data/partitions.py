"""Partitions: the division of a training set among clients.

A partition is evaluated for one client at a time. If examples are few and clients many, each client
draws its own examples (``examples_per_client``), so a million registered clients cost nothing.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from submodel.core.errors import ConfigError, refuse
from submodel.core.options import Count, Positive, Section
from submodel.core.randomness import generator
from submodel.data.facts import Owners

Positions = NDArray[np.int64]
_MOST_SAID = 5
DEFAULT_LABELS = 3
"""Default number of labels per client, unless the data has fewer."""


class Partition(Protocol):
    """The examples of each client."""

    def size(self, client: int) -> int:
        """Return the number of the client's examples; often cheaper than listing them."""

    def indices(self, client: int) -> Positions:
        """Return the positions of the client's examples in the training set, ascending."""


@dataclass(frozen=True)
class Unsplit:
    """A missing partition, with the reason: the clients' data is elsewhere."""

    problem: ConfigError

    def size(self, client: int) -> NoReturn:  # noqa: ARG002
        """Raise the reason."""
        raise self.problem

    def indices(self, client: int) -> NoReturn:  # noqa: ARG002
        """Raise the reason."""
        raise self.problem


@dataclass(frozen=True)
class PartitionContext:
    """The context in which a partition is made."""

    labels: NDArray[np.int64] | None  # of the training examples; None: targets are not labels
    total: int  # training examples
    clients: int
    seed: int
    targets: str = ""  # describes targets other than labels: "float32 of shape (60, 1)"
    owners: Owners | None = None  # the clients that the data assigns examples to

    def label_problems(self, partition: str) -> list[str]:
        """Return the reasons why a partition by labels is not defined here; empty if it is.

        >>> PartitionContext(None, 60, 6, 0, "float32 of shape (60, 1)").label_problems("dirichlet")
        ["data.partition: 'dirichlet' needs class labels, and the targets are float32 of shape \
(60, 1); use 'iid'"]
        """
        if self.labels is not None:
            return []
        targets = f", and the targets are {self.targets}" if self.targets else ""
        return [f"data.partition: {partition!r} needs class labels{targets}; use 'iid'"]


@dataclass(frozen=True)
class ClientLists:
    """A partition given as a list of examples for every client."""

    lists: tuple[Positions, ...]

    @classmethod
    def configured(cls, options: object, context: object) -> NoReturn:  # noqa: ARG003
        """Raise: it has no configuration; "own" in a configuration refers to it."""
        raise ConfigError(
            "data.partition: 'own' refers to lists given to submodel.train(clients=...) in Python"
        )

    def size(self, client: int) -> int:
        """Return the number of the client's examples."""
        return len(self.lists[client])

    def indices(self, client: int) -> Positions:
        """Return the positions of the client's examples in the training set, ascending."""
        return self.lists[client]


def as_partition(thing: Any) -> Any:
    """Convert lists of positions to a partition; return other objects unchanged."""
    if isinstance(thing, list | tuple):
        return ClientLists(tuple(np.sort(np.asarray(part, dtype=np.int64)) for part in thing))
    return thing


def parse_lists(clients: object, examples: int) -> ClientLists:
    """Make a partition from lists of positions in a training set of ``examples`` examples.

    Raises `ConfigError` for values that are not whole numbers, out of range, repeated or missing.

    >>> parse_lists([[2, 0], [1]], examples=3).indices(0)
    array([0, 2])
    """
    if not isinstance(clients, Sequence | np.ndarray) or isinstance(clients, str):
        raise ConfigError(f"clients: a {type(clients).__name__} is not a list of index arrays")
    if not len(clients):
        raise ConfigError("clients: the list is empty; give the examples of each client")
    problems, lists = [], []
    for number, positions in enumerate(clients):
        try:
            lists.append(_indices(positions, examples))
        except ValueError as error:
            problems.append(f"clients[{number}]: {error}")
    if more := problems[_MOST_SAID:]:
        problems[_MOST_SAID:] = [f"clients: likewise {len(more)} more"]
    refuse(problems)
    return ClientLists(tuple(lists))


def _indices(positions: object, examples: int) -> Positions:
    """Return positions as an ascending array; raises `ValueError` if they are invalid."""
    if isinstance(positions, str) or not isinstance(positions, Iterable):
        raise ValueError(f"{positions!r} is not an array of positions")
    array = np.asarray(positions if hasattr(positions, "__len__") else list(positions))
    if array.size == 0:
        raise ValueError("has no examples")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"an array of {array.dtype} of shape {array.shape} is not a list of whole numbers"
        )
    if array.min() < 0 or array.max() >= examples:
        out = array[(array < 0) | (array >= examples)][0]
        raise ValueError(f"{out} is not the position of an example; those are 0 to {examples - 1}")
    order = np.sort(array.astype(np.int64))
    if len(twice := order[1:][order[1:] == order[:-1]]):
        raise ValueError(f"lists example {twice[0]} twice")
    return order


@dataclass(frozen=True)
class Draws:
    """Examples drawn by each client, of ``labels_per_client`` labels or of all.

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
        """Return the number of the client's examples."""
        if self.labels_per_client is None:
            return min(self.examples_per_client, self.total)
        most = -(-self.examples_per_client // self.labels_per_client)  # of a label
        if min(map(len, self._members)) >= most:
            return self.examples_per_client
        return len(self.indices(client))

    def indices(self, client: int) -> Positions:
        """Draw without replacement within a client, from the client's key alone."""
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


@dataclass(frozen=True)
class Iid:
    """Examples dealt at random in equal parts, each to one client.

    >>> Iid(total=10, clients=3, seed=0).indices(0).shape
    (4,)
    """

    total: int
    clients: int
    seed: int

    class Options(Section):
        """The keys of ``iid``."""

        examples_per_client: Count | None = Field(
            None, description="let every client draw this many examples, shared with others"
        )

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> Partition:
        """Make equal parts, or draws of ``examples_per_client``."""
        total, clients, seed = context.total, context.clients, context.seed
        if options.examples_per_client is not None:
            return Draws(context.labels, total, options.examples_per_client, None, seed)
        if clients > total:
            raise ConfigError(
                f"clients.count: {clients} clients cannot share {total} examples, some would "
                "have none; set data.examples_per_client to let clients share examples"
            )
        return cls(total, clients, seed)

    @cached_property
    def _order(self) -> Positions:
        return generator(self.seed, "partition").permutation(self.total)

    def size(self, client: int) -> int:
        """Return the number of examples dealt to the client."""
        return len(range(client, self.total, self.clients))

    def indices(self, client: int) -> Positions:
        """Return every ``clients``-th example of a random order."""
        return np.sort(self._order[client :: self.clients])


def assign_labels(clients: int, classes: int, each: int, seed: int) -> NDArray[np.int64]:
    """Give every client exactly ``each`` different labels, every label equally often (+-1).

    Labels with the largest remaining quota are assigned first, ties at random, so the quotas never
    prevent an assignment.

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
    """Each client has exactly L labels; a label's examples are divided equally among its clients.

    This is the partition of HeteroFL and FedRolex, except that theirs may give a client one label
    twice. Every example is used once.
    """

    labels: NDArray[np.int64]
    clients: int
    labels_per_client: int
    seed: int

    class Options(Section):
        """The keys of ``labels``."""

        labels_per_client: Count | None = Field(
            None, description="L, labels per client (default: 3, or all if fewer)"
        )
        examples_per_client: Count | None = Field(
            None, description="let every client draw this many examples, shared with others"
        )

    @classmethod
    def problems(cls, options: Options, context: PartitionContext) -> list[str]:  # noqa: ARG003
        """Return problems: missing labels."""
        return context.label_problems("labels")

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> Partition:
        """Make shards of labels; raises `ConfigError` if a client would have no examples."""
        labels = context.labels
        assert labels is not None  # ensured by `problems`
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
                continue  # fewer places than classes: no client has this label
            for holder, share in zip(holders, np.array_split(members, len(holders)), strict=True):
                shares[holder].append(share)
        return shares

    def size(self, client: int) -> int:
        """Return the number of the client's examples."""
        return sum(map(len, self._shares[client]))

    def indices(self, client: int) -> Positions:
        """Return the client's part of each of its labels."""
        return np.sort(np.concatenate(self._shares[client]))


def check_label_counts(
    counts: NDArray[np.int64], clients: int, labels_per_client: int, examples_per_client: int | None
) -> None:
    """Raise if a client would have no examples; ``counts`` are the examples of every label."""
    if labels_per_client > len(counts):
        raise ConfigError(
            f"data.labels_per_client: {labels_per_client} is more than "
            f"the {len(counts)} classes; set it to {len(counts)} or less, or "
            "data.partition = 'iid'"
        )
    missing = np.flatnonzero(counts == 0)
    alone = examples_per_client is None or missing.size >= labels_per_client
    if missing.size and alone:  # some client would have missing labels only
        first_missing = ", ".join(map(str, missing[:5])) + (", ..." if missing.size > 5 else "")
        begin = "; if labels start at 1, give y - 1" if 0 in missing else ""
        raise ConfigError(
            f"data.partition: 'labels' needs examples of every label from 0 to "
            f"{len(counts) - 1}, and there are none of {first_missing}{begin}; or use 'iid'"
        )
    smallest, holders = int(counts.min()), -(-clients * labels_per_client // len(counts))
    if examples_per_client is None and not 1 <= holders <= smallest:
        raise ConfigError(
            f"clients.count: {clients} clients with {labels_per_client} labels each leave "
            f"some without examples (the rarest label has {smallest}); "
            "set data.examples_per_client to let clients share examples"
        )
    if examples_per_client is not None and examples_per_client < labels_per_client:
        raise ConfigError(
            f"data.examples_per_client: {examples_per_client} examples cannot have "
            f"{labels_per_client} labels"
        )


@dataclass(frozen=True)
class Dirichlet:
    """Each label's examples are divided among the clients in proportions drawn from Dir(alpha).

    This is the usual definition (Yurochkin et al. 2019; Li et al. 2022): for every label k one draw
    p_k ~ Dir(alpha, ..., alpha) over the clients; client i gets the share p_k[i] of the label's
    examples. A small alpha gives skewed clients, a large one nearly iid ones. Every example is used
    once. Other implementations repeat the draw until every client has enough, which may never end;
    here a client without examples takes one from the client with the most.

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

        alpha: Positive = Field(0.5, description="smaller is more skewed")

    @classmethod
    def problems(cls, options: Options, context: PartitionContext) -> list[str]:  # noqa: ARG003
        """Return problems: missing labels."""
        return context.label_problems("dirichlet")

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> Self:
        """Make the partition for the labels of the data."""
        assert context.labels is not None  # ensured by `problems`
        return cls(context.labels, context.clients, options.alpha, context.seed)

    def __post_init__(self) -> None:
        if self.clients > len(self.labels):
            raise ConfigError(
                f"clients.count: {self.clients} clients cannot share {len(self.labels)} "
                "examples, some would have none"
            )

    @cached_property
    def _owner(self) -> Positions:
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
        """Return the number of the client's examples."""
        return int(self._sizes[client])

    def indices(self, client: int) -> Positions:
        """Return the client's part of every label."""
        return np.flatnonzero(self._owner == client)


def _dirichlet(rng: np.random.Generator, alpha: float, clients: int) -> NDArray[np.float64]:
    """Draw once from Dir(alpha); if alpha is too small for floats, from its limit: one hot."""
    shares: NDArray[np.float64] = rng.dirichlet(np.full(clients, alpha))
    if np.isfinite(shares).all() and abs(shares.sum() - 1) < 1e-6:
        return shares
    shares = np.zeros(clients)
    shares[rng.integers(clients)] = 1
    return shares


@dataclass(frozen=True)
class Natural:
    """Clients given by the data: a role, a file or a value of a column, with its examples."""

    owners: Owners

    @classmethod
    def configured(cls, options: Section, context: PartitionContext) -> Self:  # noqa: ARG003
        """Make the partition for all clients that the data names."""
        if context.owners is None:
            raise ConfigError(
                "data.partition: 'natural' needs data that assigns examples to clients"
            )
        if context.clients != len(context.owners):
            raise ConfigError(
                f"clients.count: {context.clients} given, but the data has "
                f"{len(context.owners)} clients; leave it out"
            )
        return cls(context.owners)

    def size(self, client: int) -> int:
        """Return the number of the client's examples."""
        return len(self.indices(client))

    def indices(self, client: int) -> Positions:
        """Return the positions of the client's examples."""
        return self.owners.positions(client)


class PartitionOfData:
    """``natural`` if the data names clients, ``labels`` if it has labels, otherwise ``iid``."""

    class Options(ByLabel.Options):
        """The keys of ``labels``, without defaults, as the configuration of a run is complete."""

        labels_per_client: Count | None = Field(
            None,
            description="of labels: L, labels per client (default: 3, or all if fewer)",
        )

        @property
        def asks_for_natural(self) -> bool:
            """Whether no key is set that ``natural`` does not have."""
            return self.labels_per_client is None and self.examples_per_client is None

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> Partition:
        """Make the partition; keys without meaning for the data are refused."""
        if context.owners is not None and options.asks_for_natural:
            return Natural.configured(options, context)
        if context.labels is not None:
            return ByLabel.configured(options, context)
        if options.labels_per_client is not None:
            raise ConfigError(
                "data.labels_per_client: the targets are not class labels; leave it out"
            )
        return Iid.configured(Iid.Options(examples_per_client=options.examples_per_client), context)


class Flower:
    """Partitions by a partitioner of flwr-datasets, given by the name of its class."""

    class Options(Section):
        """The keys of ``flwr``."""

        partitioner: str = Field(
            description='a class of flwr-datasets, as "PathologicalPartitioner"'
        )
        partitioner_options: dict[str, Any] = Field({}, description="its keyword arguments")

    @classmethod
    def problems(cls, options: Options, context: PartitionContext) -> list[str]:  # noqa: ARG003
        """Return problems: missing labels."""
        return context.label_problems("flwr")

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> ClientLists:
        """Make the partition with the partitioner, if every client gets examples."""
        assert context.labels is not None  # ensured by `problems`
        keys = options.partitioner_options
        return flower_partition(
            context.labels, context.clients, options.partitioner, keys, context.seed
        )


def flower_partition(
    labels: NDArray[np.int64], clients: int, name: str, options: Mapping[str, Any], seed: int
) -> ClientLists:
    """Apply the partitioner ``name`` to labels; every example is used once, no client empty.

    ``num_partitions``, ``partition_by`` and ``seed`` are set if the partitioner takes them, unless
    the options give them. The partitioner gets a table with the columns "label" and "row", so that
    its parts can be traced to positions.
    """
    partitioner = _make(name, options, clients, seed)
    import datasets

    rows = {"label": labels.tolist(), "row": list(range(len(labels)))}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such parts are refused below
            partitioner.dataset = datasets.Dataset.from_dict(rows)
            parts = [
                np.sort(np.asarray(partitioner.load_partition(part)["row"], dtype=np.int64))
                for part in range(int(partitioner.num_partitions))
            ]
    except Exception as error:  # a partitioner may raise anything; its text names the mistake
        raise ConfigError(f"data.partitioner: {name}: {error}") from None
    if len(parts) != clients:
        raise ConfigError(
            f"clients.count: {clients}, but {name} makes {len(parts)} parts of these options"
        )
    check_parts(parts, len(labels), name)
    return ClientLists(tuple(parts))


def _make(name: str, options: Mapping[str, Any], clients: int, seed: int) -> Any:
    try:
        from flwr_datasets import partitioner as partitioners
    except ImportError:
        raise ConfigError(
            "data.partition: 'flwr' needs the package 'flwr-datasets': "
            "pip install 'submodel[partitioners]'"
        ) from None
    names = sorted(
        class_name
        for class_name in vars(partitioners)
        if class_name.endswith("Partitioner") and class_name != "Partitioner"
    )
    if name not in names:
        raise ConfigError(f"data.partitioner: {name!r} is not one of {', '.join(names)}")
    kind = getattr(partitioners, name)
    defaults = {"num_partitions": clients, "partition_by": "label", "seed": seed}
    parameters = inspect.signature(kind).parameters
    arguments = {key: value for key, value in defaults.items() if key in parameters} | dict(options)
    try:
        return kind(**arguments)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"data.partitioner_options: {name}: {error}") from None


def check_parts(parts: list[Positions], total: int, name: str) -> None:
    """Refuse parts that omit an example, repeat one, or leave a client empty."""
    times = np.bincount(np.concatenate(parts), minlength=total)
    problems = []
    if missing := int((times == 0).sum()):
        problems.append(
            f"data.partitioner: {name} gives {missing:,} of {total:,} examples to no client, the "
            f"first is {int((times == 0).argmax())}"
        )
    if twice := int((times > 1).sum()):
        problems.append(
            f"data.partitioner: {name} gives {twice:,} examples to more than one client, the first "
            f"is {int((times > 1).argmax())}"
        )
    if empty := [client for client, part in enumerate(parts) if not len(part)]:
        problems.append(
            f"data.partitioner: {name} leaves {len(empty)} clients without examples, the first is "
            f"{empty[0]}"
        )
    refuse(problems)
