"""How coordinates are masked: a scheme, the clients' capacities, and the masks they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from submodel.model import COORDINATES, units_held
from submodel.schemes import (
    BorrowsMasks,
    Draw,
    Dropout,
    Full,
    Hierarchical,
    PartitionScheme,
    Random,
    Rolling,
    RunFacts,
    Scheme,
    Static,
    output_passes,
    problems_of,
)
from submodel_lab.theory.mask_laws import BernoulliLaw, FixedSizeLaw, ListLaw, MaskLaw
from submodel_lab.theory.mask_schemes import CoordinateChances, MaskList
from submodel_lab.theory.problems import FloatArray, TheoryError

_MOST_DEALS = 20_000  # ways to divide the coordinates among clients, that are listed


@dataclass(frozen=True)
class Masking:
    """A scheme and the capacity of every client (p_i, or s_i / d).

    ``unbiased`` scales what is held by one over its chance, as MAST does, so that its mean is 1;
    the scheme `Unbiased` does so by itself.
    """

    scheme: Scheme
    capacities: tuple[float, ...]
    unbiased: bool = False

    def __post_init__(self) -> None:
        for p in self.capacities:
            if not 0 < p <= 1:
                raise TheoryError(f"p = {p:g} is not in (0, 1]: a client must hold something")
        _refuse(self.scheme, self.capacities)

    @property
    def mask_scheme(self) -> Scheme:
        """Who draws the masks: the scheme, or the one whose masks it borrows."""
        scheme = self.scheme
        while isinstance(scheme, BorrowsMasks):
            scheme = scheme.masks_of
        return scheme

    def law(self, dimension: int) -> MaskLaw:
        """The law of a round's masks of ``dimension`` coordinates.

        >>> bernoulli(0.5, 2).law(3).count(0)
        8
        """
        scheme, n = self.scheme, len(self.capacities)
        facts = RunFacts({COORDINATES: dimension}, self.capacities, n, n, "coordinate")
        if problems := problems_of(scheme, facts):
            raise TheoryError(f"{type(scheme).__name__}: {problems[0]}")
        return _make_law(self.mask_scheme, self.capacities, dimension)

    def factors(self, dimension: int) -> FloatArray:
        """What the held coordinates are multiplied with: clients x d."""
        if not self.unbiased and self.scheme.chance(1, 1.0) is None:
            return np.ones((len(self.capacities), dimension))
        first, _ = self.law(dimension).moments
        if not (first > 0).all():
            raise TheoryError("a coordinate is never held: nothing can be divided by its chance")
        return np.asarray(1 / first)

    def lists_every_mask(self, dimension: int) -> bool:
        """Whether `list_masks` has all the masks, and not a fixed choice of them."""
        return self.law(dimension).lists_all

    def list_masks(self, dimension: int) -> tuple[FloatArray, FloatArray]:
        """Masks (clients x masks x d) and their probabilities (clients x masks)."""
        return self.law(dimension).list_masks()

    def moments(self, dimension: int) -> tuple[FloatArray, FloatArray]:
        """E[m_i] (clients x d) and E[m_i m_i'] (clients x d x d), scaled; exact."""
        first, second = self.law(dimension).moments
        factors = self.factors(dimension)
        return first * factors, second * (factors[:, :, None] * factors[:, None])


def _refuse(scheme: Scheme, capacities: Sequence[float]) -> None:
    """Say why a scheme's masks have no law that the lab could use."""
    name = type(scheme).__name__
    if scheme.looks_at_model:
        raise TheoryError(f"{name}: its masks depend on the weights; the lab's must not")
    if scheme.cells > 1:
        raise TheoryError(f"{name}: cells average among themselves; Algorithms 1 and 2 do not")
    if any(scheme.step_rule(p) is not None for p in capacities):
        raise TheoryError(f"{name}: a mask for each local step; the lab has one for each round")
    single_cell = isinstance(scheme, Hierarchical)  # then everyone holds everything
    while isinstance(scheme, BorrowsMasks):
        scheme = scheme.masks_of
    with_law = Random | Dropout | Rolling | Static | Full | PartitionScheme
    if not isinstance(scheme, with_law | CoordinateChances | MaskList) and not single_cell:
        raise TheoryError(
            f"{name}: the law of its masks is not known here; give them as a list "
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
    rest, ways = dimension, 1
    for size in sizes:
        ways *= math.comb(rest, size)
        rest -= size
    if ways > _MOST_DEALS:
        return FixedSizeLaw(sizes, dimension, independent=False)
    deals: list[list[tuple[int, ...]]] = [[]]
    for size in sizes:
        deals = [
            [*deal, part]
            for deal in deals
            for part in combinations(sorted(set(range(dimension)).difference(*deal)), size)
        ]
    masks = np.zeros((ways, len(sizes), dimension))
    for entry, deal in zip(masks, deals, strict=True):
        for client, part in enumerate(deal):
            entry[client, list(part)] = 1
    return ListLaw(masks, np.full(ways, 1 / ways), every=scheme.every)


def bernoulli(p: float, clients: int, unbiased: bool = False) -> Masking:
    """The same p for all clients."""
    return Masking(Random(), (p,) * clients, unbiased)


def rolling(p: float, clients: int, dimension: int, sequential: bool = False) -> Masking:
    """Windows of a share p, one per coordinate."""
    scheme = Rolling(dimension, "sequential" if sequential else "shuffled")
    return Masking(scheme, (p,) * clients)


def coordinatewise(probabilities: FloatArray, unbiased: bool = False) -> Masking:
    """A probability for every client and coordinate.

    Args:
        probabilities: Clients x d, each in (0, 1].
        unbiased: Whether what is held is divided by its probability.

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
    """Any masks at all: a list of what clients may hold in a round.

    Args:
        masks: Entries x clients x d, of 0 and 1.
        chances: Of the entries, of sum 1; all equal if not given.
        together: Whether all clients get the same entry, or everyone draws one.
        unbiased: Whether what is held is divided by its chance.

    >>> mask_list(np.eye(3)[:, None]).moments(3)[0].round(3)
    array([[0.333, 0.333, 0.333]])
    """
    table = np.array(masks, float)
    if table.ndim != 3 or not len(table) or not np.isin(table, (0.0, 1.0)).all():
        raise TheoryError("masks must be entries x clients x d, of 0 and 1")
    weights = np.full(len(table), 1 / len(table)) if chances is None else np.array(chances, float)
    if weights.shape != (len(table),) or (weights < 0).any() or abs(weights.sum() - 1) > 1e-9:
        raise TheoryError(f"chances: {len(table)} numbers of sum 1 are needed, none negative")
    shares = np.einsum("m,mid->i", weights, table) / table.shape[2]
    return Masking(MaskList(table, weights, together), tuple(shares.tolist()), unbiased)


def epoch_windows(masking: Masking, seeds: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
    """The windows that trials with these seeds visit in an epoch: trials x rounds."""
    scheme = masking.mask_scheme
    assert isinstance(scheme, Rolling)
    rounds = range(epoch * scheme.windows, (epoch + 1) * scheme.windows)
    return np.array([[scheme.window(Draw(int(s), r, 0)) for r in rounds] for s in seeds])
