"""A partition that is given: a list of examples for every client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from submodel.data.partitions.base import Positions
from submodel.errors import ConfigError

_MOST_SAID = 5


@dataclass(frozen=True)
class ClientLists:
    """Every client has the examples that somebody listed for it."""

    lists: tuple[Positions, ...]

    @classmethod
    def configured(cls, options: object, context: object) -> NoReturn:  # noqa: ARG003
        """Not from a configuration, in which "own" stands for it."""
        raise ConfigError(
            ["data.partition: 'own' stands for what submodel.train(clients=...) is given in Python"]
        )

    def size(self, client: int) -> int:
        """How many examples the client has."""
        return len(self.lists[client])

    def indices(self, client: int) -> Positions:
        """The positions of the client's examples in the training set, ascending."""
        return self.lists[client]


def parse_lists(clients: object, examples: int) -> ClientLists:
    """The partition of these lists of positions in a training set of so many examples.

    Raises `ConfigError` with what is wrong: not whole numbers, out of range, twice, nothing.

    >>> parse_lists([[2, 0], [1]], examples=3).indices(0)
    array([0, 2])
    """
    if not isinstance(clients, Sequence | np.ndarray) or isinstance(clients, str):
        raise ConfigError([f"clients: a {type(clients).__name__} is not a list of index arrays"])
    if not len(clients):
        raise ConfigError(["clients: the list is empty; give the examples of each client"])
    problems, lists = [], []
    for number, positions in enumerate(clients):
        try:
            lists.append(_indices(positions, examples))
        except ValueError as error:
            problems.append(f"clients[{number}]: {error}")
    if more := problems[_MOST_SAID:]:
        problems[_MOST_SAID:] = [f"clients: likewise {len(more)} more"]
    if problems:
        raise ConfigError(problems)
    return ClientLists(tuple(lists))


def _indices(positions: object, examples: int) -> Positions:
    """Positions as an ascending array; raises `ValueError` where they are none."""
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
