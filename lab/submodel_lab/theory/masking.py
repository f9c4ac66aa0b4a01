"""Masking of coordinates: laws of a round's masks, and the schemes that draw them.

Three kinds of law cover every scheme: independent coordinates, sets of a fixed size, and lists of
masks. With lists, clients (windows, parts) and rounds may depend on each other.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from submodel.core import generator
from submodel.model import COORDINATES, units_held
from submodel.schemes import (
    BorrowsMasks,
    Draw,
    Dropout,
    Full,
    Hierarchical,
    Mask,
    PartitionScheme,
    Random,
    Rolling,
    RunFacts,
    Scheme,
    Static,
    output_passes,
    problems_of,
)
from submodel_lab.theory.problems import FloatArray, TheoryError

MOST_LISTED = 1 << 10
"""Largest number of masks of a client in an exact list; beyond it, a fixed sample is used."""
_CHOICE = 2048
_MOST_DEALS = 20_000  # listed divisions of the coordinates among clients
MaskOrder = Literal["fresh", "shuffled", "sequential"]
"""Order over rounds: independent, each list entry once per epoch, or in the order of the list."""


class MaskLaw(ABC):
    """Law of the masks (m_1, ..., m_N) of one round."""

    independent: bool
    """Whether the clients' masks are independent of each other."""

    @property
    @abstractmethod
    def moments(self) -> tuple[FloatArray, FloatArray]:
        """E[m_i] (clients x d) and E[m_i m_i'] (clients x d x d)."""

    @abstractmethod
    def count(self, client: int) -> int:
        """Return the number of possible masks of a client."""

    @abstractmethod
    def list_client(self, client: int) -> tuple[FloatArray, FloatArray]:
        """Return all masks of a client (masks x d) and their probabilities."""

    def choose_masks(self) -> tuple[FloatArray, FloatArray] | None:
        """Return a fixed sample of masks for all clients, or None if the law has none."""
        return None

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.moments[0])

    @property
    def lists_all(self) -> bool:
        """Whether `list_masks` returns all masks."""
        return self.choose_masks() is None or self._few

    @property
    def _few(self) -> bool:
        return max(self.count(i) for i in range(self.clients)) <= MOST_LISTED

    def list_masks(self) -> tuple[FloatArray, FloatArray]:
        """Return all masks, or the fixed sample (clients x masks x d), and their probabilities."""
        if not self._few and (choice := self.choose_masks()) is not None:
            return choice
        parts = [self.list_client(i) for i in range(self.clients)]
        longest = max(len(chances) for _, chances in parts)
        masks = np.zeros((len(parts), longest, parts[0][0].shape[1]))
        all_chances = np.zeros((len(parts), longest))  # 0 for padding
        for i, (client_masks, chances) in enumerate(parts):
            masks[i, : len(chances)], all_chances[i, : len(chances)] = client_masks, chances
        return masks, all_chances


@dataclass(frozen=True, eq=False)
class BernoulliLaw(MaskLaw):
    """Independent coordinates, with a probability for each client and coordinate."""

    probabilities: FloatArray  # clients x d
    independent = True

    @property
    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Means p, and second moments p p' with diagonal p."""
        p = self.probabilities
        second = p[:, :, None] * p[:, None]
        d = range(p.shape[1])
        second[:, d, d] = p
        return p.copy(), second

    def count(self, client: int) -> int:
        """Return 2 to the power of the number of uncertain coordinates."""
        return 1 << int((self.probabilities[client] < 1).sum())

    def list_client(self, client: int) -> tuple[FloatArray, FloatArray]:
        """Return all masks; certain coordinates are in each."""
        p = self.probabilities[client]
        open_ = np.flatnonzero(p < 1)
        choices = np.array(list(product((0.0, 1.0), repeat=len(open_))))
        masks = np.ones((len(choices), len(p)))
        masks[:, open_] = choices
        return masks, np.prod(np.where(choices > 0, p[open_], 1 - p[open_]), 1)

    def choose_masks(self) -> tuple[FloatArray, FloatArray]:
        """Return an antithetic sample, whose means have less error."""
        is_held = _uniform(self.probabilities.shape[1])[None] < self.probabilities[:, None]
        masks = is_held.astype(np.float64)
        return masks, np.full(masks.shape[:2], 1 / _CHOICE)


@dataclass(frozen=True, eq=False)
class FixedSizeLaw(MaskLaw):
    """Sets of s_i coordinates with equal probability (hypergeometric)."""

    sizes: tuple[int, ...]
    dimension: int
    independent: bool = True  # False: disjoint parts with too many divisions to list

    @property
    def orders(self) -> FloatArray:
        """Probability that k given coordinates are all held, k = 1 ... 4: clients x 4."""
        d = self.dimension
        return np.array(
            [[math.perm(s, k) / math.perm(d, k) if k <= d else 0.0 for k in range(1, 5)]
             for s in self.sizes]
        )  # fmt: skip

    @property
    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Means s/d, and second moments s(s-1)/(d(d-1)) for two coordinates."""
        d, orders = self.dimension, self.orders
        second = np.repeat(np.repeat(orders[:, 1, None, None], d, 1), d, 2)
        second[:, range(d), range(d)] = orders[:, :1]
        return np.repeat(orders[:, :1], d, 1), second

    def count(self, client: int) -> int:
        """Return the binomial coefficient of d and s."""
        return math.comb(self.dimension, self.sizes[client])

    def list_client(self, client: int) -> tuple[FloatArray, FloatArray]:
        """Return all sets."""
        masks = np.zeros((self.count(client), self.dimension))
        for row, members in zip(
            masks, combinations(range(self.dimension), self.sizes[client]), strict=True
        ):
            row[list(members)] = 1
        return masks, np.full(len(masks), 1 / len(masks))

    def choose_masks(self) -> tuple[FloatArray, FloatArray]:
        """Return the first s coordinates of random orders and of their reverses."""
        ranks = _uniform(self.dimension).argsort(1).argsort(1)
        masks = (ranks[None] < np.array(self.sizes)[:, None, None]).astype(np.float64)
        return masks, np.full(masks.shape[:2], 1 / _CHOICE)


@dataclass(frozen=True, eq=False)
class ListLaw(MaskLaw):
    """A list of masks of all clients; a round takes one entry, or one for each client.

    ``every`` rounds have the same entry. ``order`` is the order of entries over rounds.
    """

    masks: FloatArray  # entries x clients x d
    chances: FloatArray  # of entries
    order: MaskOrder = "fresh"
    every: int = 1
    independent: bool = False  # True: every client draws an entry by itself

    @property
    def moments(self) -> tuple[FloatArray, FloatArray]:
        """Means and second moments, as sums over the list."""
        first = np.einsum("m,mid->id", self.chances, self.masks)
        return first, np.einsum("m,mid,mie->ide", self.chances, self.masks, self.masks)

    def count(self, client: int) -> int:  # noqa: ARG002
        """Return the length of the list."""
        return len(self.masks)

    def list_client(self, client: int) -> tuple[FloatArray, FloatArray]:
        """Return the client's part of every entry."""
        return self.masks[:, client], self.chances


def _uniform(dimension: int) -> FloatArray:
    uniform = generator(0, "listed masks").random((_CHOICE // 2, dimension))
    return np.concatenate([uniform, 1 - uniform])


@dataclass(frozen=True, eq=False)
class CoordinateChances(Scheme):
    """Independent coordinates; with equal probabilities it equals `Random` bit for bit."""

    probabilities: FloatArray  # clients x d

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Draw coordinates; a multiple of d as a size gives as many draws of d.

        >>> scheme = CoordinateChances(np.array([[1.0, 0.5]]))
        >>> bool(scheme.select("coordinates", 6, 0.75, Draw(0, 0, 0))[::2].all())
        True
        """
        rng = generator(draw.seed, "mask", draw.round, draw.client, axis)
        p = self.probabilities[draw.client]
        mask: Mask = rng.random(size) < np.tile(p, size // len(p))
        return mask


@dataclass(frozen=True, eq=False)
class MaskList(Scheme):
    """Draw one entry of a list of masks per round (entries x clients x d).

    With ``together`` all clients take the same entry; otherwise each client draws its own.
    """

    masks: FloatArray
    chances: FloatArray
    together: bool = True

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Return the client's part of the drawn entry.

        >>> scheme = MaskList(np.eye(2)[:, None], np.array([0.0, 1.0]))
        >>> scheme.select("coordinates", 2, 0.5, Draw(0, 0, 0))
        array([False,  True])
        """
        key = () if self.together else (draw.client,)
        place = generator(draw.seed, "mask list", draw.round, *key).random()
        entry = int(np.searchsorted(np.cumsum(self.chances)[:-1], place, side="right"))
        return np.asarray(self.masks[entry, draw.client] > 0)


@dataclass(frozen=True)
class Masking:
    """A scheme and the capacity of every client (p_i, or s_i / d).

    ``unbiased`` divides held coordinates by their probability, as MAST does, so that the mean is 1;
    the scheme `Unbiased` does so already.
    """

    scheme: Scheme
    capacities: tuple[float, ...]
    unbiased: bool = False

    def __post_init__(self) -> None:
        for p in self.capacities:
            if not 0 < p <= 1:
                raise TheoryError(f"p = {p:g} is not in (0, 1]; every client holds something")
        _refuse(self.scheme, self.capacities)

    @property
    def mask_scheme(self) -> Scheme:
        """The scheme that draws the masks: this one, or the one whose masks it borrows."""
        scheme = self.scheme
        while isinstance(scheme, BorrowsMasks):
            scheme = scheme.masks_of
        return scheme

    def law(self, dimension: int) -> MaskLaw:
        """Return the law of a round's masks of ``dimension`` coordinates.

        >>> bernoulli(0.5, 2).law(3).count(0)
        8
        """
        scheme, n = self.scheme, len(self.capacities)
        facts = RunFacts({COORDINATES: dimension}, self.capacities, n, n, "coordinate")
        if problems := problems_of(scheme, facts):
            raise TheoryError(f"{type(scheme).__name__}: {problems[0]}")
        return _make_law(self.mask_scheme, self.capacities, dimension)

    def factors(self, dimension: int) -> FloatArray:
        """Return the factors of held coordinates: clients x d."""
        if not self.unbiased and self.scheme.chance(1, 1.0) is None:
            return np.ones((len(self.capacities), dimension))
        first, _ = self.law(dimension).moments
        if not (first > 0).all():
            raise TheoryError(
                "a coordinate is never held, so nothing can be divided by its probability"
            )
        return np.asarray(1 / first)

    def list_masks(self, dimension: int) -> tuple[FloatArray, FloatArray]:
        """Return masks (clients x masks x d) and their probabilities (clients x masks)."""
        return self.law(dimension).list_masks()

    def scaled_masks(self, dimension: int) -> tuple[FloatArray, FloatArray]:
        """Return masks times their factors, and their probabilities."""
        masks, chances = self.list_masks(dimension)
        return masks * self.factors(dimension)[:, None], chances

    def moments(self, dimension: int) -> tuple[FloatArray, FloatArray]:
        """Return the exact E[m_i] (clients x d) and E[m_i m_i'] (clients x d x d), with factors."""
        first, second = self.law(dimension).moments
        factors = self.factors(dimension)
        return first * factors, second * (factors[:, :, None] * factors[:, None])


def _refuse(scheme: Scheme, capacities: Sequence[float]) -> None:
    """Raise an error if the law of a scheme's masks is not usable here."""
    name = type(scheme).__name__
    if scheme.looks_at_model:
        raise TheoryError(f"{name}: its masks depend on the weights, which the lab cannot use")
    if scheme.cells > 1:
        raise TheoryError(f"{name}: cells average among themselves; Algorithms 1 and 2 do not")
    if any(scheme.step_rule(p) is not None for p in capacities):
        raise TheoryError(f"{name}: a mask for each local step; the lab has one for each round")
    single_cell = isinstance(scheme, Hierarchical)  # then all clients hold everything
    while isinstance(scheme, BorrowsMasks):
        scheme = scheme.masks_of
    with_law = Random | Dropout | Rolling | Static | Full | PartitionScheme
    if not isinstance(scheme, with_law | CoordinateChances | MaskList) and not single_cell:
        raise TheoryError(
            f"{name}: the law of its masks is not known; give them as a list "
            "(submodel_lab.theory.mask_list)"
        )


@lru_cache(maxsize=64)
def _make_law(scheme: Scheme, capacities: tuple[float, ...], dimension: int) -> MaskLaw:
    n = len(capacities)
    if isinstance(scheme, CoordinateChances):
        _check_shape("probabilities", scheme.probabilities, n, dimension)
        return BernoulliLaw(scheme.probabilities)
    if isinstance(scheme, MaskList):
        _check_shape("masks", scheme.masks[0], n, dimension)
        return ListLaw(scheme.masks, scheme.chances, independent=not scheme.together)
    if isinstance(scheme, Dropout) or (isinstance(scheme, Random) and scheme.sampling == "fixed"):
        return FixedSizeLaw(tuple(units_held(p, dimension) for p in capacities), dimension)
    if isinstance(scheme, Random):
        return BernoulliLaw(np.repeat(np.array(capacities)[:, None], dimension, 1))
    if isinstance(scheme, PartitionScheme):
        return _deal_law(scheme, capacities, dimension)
    passes = output_passes(scheme)
    masks = np.array(
        [[s.select(COORDINATES, dimension, p, Draw(0, 0, i)) for i, p in enumerate(capacities)]
         for s in passes], float,
    )  # fmt: skip
    chances = np.full(len(passes), 1 / len(passes))
    return ListLaw(masks, chances, scheme.order if isinstance(scheme, Rolling) else "fresh")


def _check_shape(what: str, values: FloatArray, clients: int, dimension: int) -> None:
    if values.shape != (clients, dimension):
        shape = " x ".join(map(str, values.shape))
        raise TheoryError(f"{what} for {shape} (clients x d); here {clients} x {dimension}")


def _deal_law(scheme: PartitionScheme, capacities: tuple[float, ...], dimension: int) -> MaskLaw:
    draws = [Draw(0, 0, i, place=i) for i in range(len(capacities))]
    parts = [scheme.select(COORDINATES, dimension, capacities[0], draw) for draw in draws]
    sizes = tuple(int(part.sum()) for part in parts)
    rest, divisions = dimension, 1
    for size in sizes:
        divisions *= math.comb(rest, size)
        rest -= size
    if divisions > _MOST_DEALS:
        return FixedSizeLaw(sizes, dimension, independent=False)
    deals: list[list[tuple[int, ...]]] = [[]]
    for size in sizes:
        deals = [
            [*deal, part]
            for deal in deals
            for part in combinations(sorted(set(range(dimension)).difference(*deal)), size)
        ]
    masks = np.zeros((divisions, len(sizes), dimension))
    for entry, deal in zip(masks, deals, strict=True):
        for client, part in enumerate(deal):
            entry[client, list(part)] = 1
    return ListLaw(masks, np.full(divisions, 1 / divisions), every=scheme.every)


def bernoulli(p: float, clients: int, unbiased: bool = False) -> Masking:
    """Mask with the same p for all clients."""
    return Masking(Random(), (p,) * clients, unbiased)


def rolling(p: float, clients: int, dimension: int, sequential: bool = False) -> Masking:
    """Mask with rolling windows of a share p, one per coordinate."""
    scheme = Rolling(dimension, "sequential" if sequential else "shuffled")
    return Masking(scheme, (p,) * clients)


def coordinatewise(probabilities: FloatArray, unbiased: bool = False) -> Masking:
    """Mask with a probability per client and coordinate; ``unbiased`` divides by it.

    >>> first, _ = coordinatewise(np.array([[1.0, 0.25]])).moments(2)
    >>> first
    array([[1.  , 0.25]])
    """
    p = np.array(probabilities, float)
    if p.ndim != 2 or not ((p > 0) & (p <= 1)).all():
        raise TheoryError("probabilities must be clients x d, each in (0, 1]")
    return Masking(CoordinateChances(p), tuple(p.mean(1).tolist()), unbiased)


def mask_list(
    masks: FloatArray,
    chances: Sequence[float] | None = None,
    together: bool = True,
    unbiased: bool = False,
) -> Masking:
    """Mask with any list of masks for a round (entries x clients x d).

    All clients take the same entry, or each draws its own; chances are equal by default.

    >>> mask_list(np.eye(3)[:, None]).moments(3)[0].round(3)
    array([[0.333, 0.333, 0.333]])
    """
    table = np.array(masks, float)
    if table.ndim != 3 or not len(table) or not np.isin(table, (0.0, 1.0)).all():
        raise TheoryError("masks must be entries x clients x d, of 0 and 1")
    weights = np.full(len(table), 1 / len(table)) if chances is None else np.array(chances, float)
    if weights.shape != (len(table),) or (weights < 0).any() or abs(weights.sum() - 1) > 1e-9:
        raise TheoryError(f"chances: {len(table)} non-negative numbers of sum 1 are needed")
    shares = np.einsum("m,mid->i", weights, table) / table.shape[2]
    return Masking(MaskList(table, weights, together), tuple(shares.tolist()), unbiased)


def epoch_windows(masking: Masking, seeds: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
    """Return the windows that trials with these seeds visit in an epoch: trials x rounds."""
    scheme = masking.mask_scheme
    assert isinstance(scheme, Rolling)
    rounds = range(epoch * scheme.windows, (epoch + 1) * scheme.windows)
    return np.array([[scheme.window(Draw(int(s), r, 0)) for r in rounds] for s in seeds])
