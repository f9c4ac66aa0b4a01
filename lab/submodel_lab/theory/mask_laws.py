"""The law of a round's masks: how often each comes, their moments, and what follows over rounds.

Three kinds are enough for every scheme: coordinates drawn by themselves, sets of a fixed size, and
lists of masks. With lists, clients may depend on each other (windows, parts), and rounds too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

import numpy as np

from submodel.randomness import generator
from submodel_lab.theory.problems import FloatArray

MOST_LISTED = 1 << 10
"""Masks of a client that are listed for objectives; where there are more, a fixed choice is."""
_CHOICE = 2048

MaskOrder = Literal["fresh", "shuffled", "sequential"]
"""Over rounds: independent; every one of the list once per epoch; in the order of the list."""


class MaskLaw(ABC):
    """The law of the masks (m_1, ..., m_N) of one round."""

    independent: bool
    """Whether the clients' masks are independent of each other."""

    @property
    @abstractmethod
    def moments(self) -> tuple[FloatArray, FloatArray]:
        """E[m_i] (clients x d) and E[m_i m_i'] (clients x d x d)."""

    @abstractmethod
    def count(self, client: int) -> int:
        """How many masks a client may get."""

    @abstractmethod
    def list_client(self, client: int) -> tuple[FloatArray, FloatArray]:
        """All of a client's masks (masks x d), and their chances."""

    def choose_masks(self) -> tuple[FloatArray, FloatArray] | None:
        """A fixed choice of masks for all clients, where all are too many; None: there is none."""
        return None

    @property
    def clients(self) -> int:
        """N."""
        return len(self.moments[0])

    @property
    def lists_all(self) -> bool:
        """Whether `list_masks` has all masks."""
        return self.choose_masks() is None or self._few

    @property
    def _few(self) -> bool:
        return max(self.count(i) for i in range(self.clients)) <= MOST_LISTED

    def list_masks(self) -> tuple[FloatArray, FloatArray]:
        """Masks (clients x masks x d) and chances (clients x masks): all, or the fixed choice."""
        if not self._few and (choice := self.choose_masks()) is not None:
            return choice
        parts = [self.list_client(i) for i in range(self.clients)]
        longest = max(len(chances) for _, chances in parts)
        masks = np.zeros((len(parts), longest, parts[0][0].shape[1]))
        all_chances = np.zeros((len(parts), longest))  # of what is not there: 0
        for i, (client_masks, chances) in enumerate(parts):
            masks[i, : len(chances)], all_chances[i, : len(chances)] = client_masks, chances
        return masks, all_chances


@dataclass(frozen=True, eq=False)
class BernoulliLaw(MaskLaw):
    """Every coordinate by itself, with a probability of its own for each client."""

    probabilities: FloatArray  # clients x d
    independent = True

    @property
    def moments(self) -> tuple[FloatArray, FloatArray]:
        """P, and p p' but on the diagonal."""
        p = self.probabilities
        second = p[:, :, None] * p[:, None]
        d = range(p.shape[1])
        second[:, d, d] = p
        return p.copy(), second

    def count(self, client: int) -> int:
        """2 to the coordinates that are not certain."""
        return 1 << int((self.probabilities[client] < 1).sum())

    def list_client(self, client: int) -> tuple[FloatArray, FloatArray]:
        """All masks; certain coordinates are in each."""
        p = self.probabilities[client]
        open_ = np.flatnonzero(p < 1)
        choices = np.array(list(product((0.0, 1.0), repeat=len(open_))))
        masks = np.ones((len(choices), len(p)))
        masks[:, open_] = choices
        return masks, np.prod(np.where(choices > 0, p[open_], 1 - p[open_]), 1)

    def choose_masks(self) -> tuple[FloatArray, FloatArray]:
        """Antithetic, so that means are exact sooner."""
        is_held = _uniform(self.probabilities.shape[1])[None] < self.probabilities[:, None]
        masks = is_held.astype(np.float64)
        return masks, np.full(masks.shape[:2], 1 / _CHOICE)


@dataclass(frozen=True, eq=False)
class FixedSizeLaw(MaskLaw):
    """Sets of s_i coordinates, each as likely as any other: hypergeometric."""

    sizes: tuple[int, ...]
    dimension: int
    independent: bool = True  # False: clients share nothing, and are too many to list together

    @property
    def orders(self) -> FloatArray:
        """P(k given coordinates are all held), k = 1 ... 4: clients x 4."""
        d = self.dimension
        return np.array(
            [[math.perm(s, k) / math.perm(d, k) if k <= d else 0.0 for k in range(1, 5)]
             for s in self.sizes]
        )  # fmt: skip

    @property
    def moments(self) -> tuple[FloatArray, FloatArray]:
        """The share s/d; two coordinates are held with s(s-1)/(d(d-1)), not (s/d)^2."""
        d, orders = self.dimension, self.orders
        second = np.repeat(np.repeat(orders[:, 1, None, None], d, 1), d, 2)
        second[:, range(d), range(d)] = orders[:, :1]
        return np.repeat(orders[:, :1], d, 1), second

    def count(self, client: int) -> int:
        """D over s."""
        return math.comb(self.dimension, self.sizes[client])

    def list_client(self, client: int) -> tuple[FloatArray, FloatArray]:
        """All sets."""
        masks = np.zeros((self.count(client), self.dimension))
        for row, members in zip(
            masks, combinations(range(self.dimension), self.sizes[client]), strict=True
        ):
            row[list(members)] = 1
        return masks, np.full(len(masks), 1 / len(masks))

    def choose_masks(self) -> tuple[FloatArray, FloatArray]:
        """The first s of an order, and of its reverse."""
        ranks = _uniform(self.dimension).argsort(1).argsort(1)
        masks = (ranks[None] < np.array(self.sizes)[:, None, None]).astype(np.float64)
        return masks, np.full(masks.shape[:2], 1 / _CHOICE)


@dataclass(frozen=True, eq=False)
class ListLaw(MaskLaw):
    """A list of what clients hold: one entry a round for all, or for each its own.

    ``every`` rounds have the same entry. ``order`` says how entries follow each other.
    """

    masks: FloatArray  # entries x clients x d
    chances: FloatArray  # of entries
    order: MaskOrder = "fresh"
    every: int = 1
    independent: bool = False  # True: every client draws an entry by itself

    @property
    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Sums over the list."""
        first = np.einsum("m,mid->id", self.chances, self.masks)
        return first, np.einsum("m,mid,mie->ide", self.chances, self.masks, self.masks)

    def count(self, client: int) -> int:  # noqa: ARG002
        """The list's length."""
        return len(self.masks)

    def list_client(self, client: int) -> tuple[FloatArray, FloatArray]:
        """The client's part of every entry."""
        return self.masks[:, client], self.chances


def _uniform(dimension: int) -> FloatArray:
    uniform = generator(0, "listed masks").random((_CHOICE // 2, dimension))
    return np.concatenate([uniform, 1 - uniform])
