"""How coordinates are masked: a scheme, the clients' capacities, and the masks they make."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from submodel.model.cut import COORDINATES
from submodel.randomness import generator
from submodel.schemes import Draw, Random, Rolling, Scheme
from submodel.theory.problems import FloatArray, TheoryError

_MOST_ENUMERATED = 10  # coordinates, of which all 2^d masks are listed
_LIST_LENGTH = 2048  # masks, where there are more


@dataclass(frozen=True)
class Masking:
    """A scheme and the capacity of every client (p_i, or s_i / d).

    ``unbiased`` scales what is held by 1/p_i, as MAST does, so that E[m_i / p_i] = 1.
    """

    scheme: Scheme
    capacities: tuple[float, ...]
    unbiased: bool = False

    def __post_init__(self) -> None:
        for p in self.capacities:
            if not 0 < p <= 1:
                raise TheoryError(f"p = {p:g} is not in (0, 1]: a client must hold something")
        if not isinstance(self.scheme, Random | Rolling):
            raise TheoryError(f"{type(self.scheme).__name__}: only random and rolling schemes")

    @property
    def scales(self) -> FloatArray:
        """What the held coordinates are multiplied with: one number per client."""
        return np.array([1 / p if self.unbiased else 1.0 for p in self.capacities])

    @property
    def _whole(self) -> bool:
        return all(p == 1 for p in self.capacities)

    def lists_every_mask(self, dimension: int) -> bool:
        """Whether `list_masks` has all the masks, and not a fixed choice of them."""
        return isinstance(self.scheme, Rolling) or self._whole or dimension <= _MOST_ENUMERATED

    def list_masks(self, dimension: int) -> tuple[FloatArray, FloatArray]:
        """Masks (clients x masks x d) and their probabilities (clients x masks)."""
        if isinstance(self.scheme, Rolling):
            passes = self.scheme.output_passes()
            masks = [
                [s.select(COORDINATES, dimension, p, Draw(0, 0, i)) for s in passes]
                for i, p in enumerate(self.capacities)
            ]
            return np.array(masks, float), np.full((len(masks), len(passes)), 1 / len(passes))
        if self._whole:
            return np.ones((len(self.capacities), 1, dimension)), np.ones((len(self.capacities), 1))
        if dimension <= _MOST_ENUMERATED:
            every = np.array(list(product((0.0, 1.0), repeat=dimension)))
            p = np.array(self.capacities)[:, None]
            kept_counts = every.sum(1)[None]
            chances = p**kept_counts * (1 - p) ** (dimension - kept_counts)
            return np.broadcast_to(every, (len(self.capacities), *every.shape)), chances
        uniform = generator(0, "listed masks").random((_LIST_LENGTH // 2, dimension))
        uniform = np.concatenate([uniform, 1 - uniform])  # antithetic: means are exact sooner
        masks_ = (uniform[None] < np.array(self.capacities)[:, None, None]).astype(float)
        return masks_, np.full(masks_.shape[:2], 1 / _LIST_LENGTH)

    def moments(self, dimension: int) -> tuple[FloatArray, FloatArray]:
        """E[m_i] (clients x d) and E[m_i m_i'] (clients x d x d), scaled; exact."""
        scales = self.scales
        if isinstance(self.scheme, Rolling):
            masks, chances = self.list_masks(dimension)
            first = np.einsum("im,imd->id", chances, masks)
            second = np.einsum("im,imd,ime->ide", chances, masks, masks)
        else:
            p = np.array(self.capacities)
            first = np.repeat(p[:, None], dimension, 1)
            second = np.repeat((p**2)[:, None, None], dimension, 1).repeat(dimension, 2)
            second[:, range(dimension), range(dimension)] = p[:, None]
        return first * scales[:, None], second * (scales**2)[:, None, None]


def bernoulli(p: float, clients: int, unbiased: bool = False) -> Masking:
    """The same p for all clients."""
    return Masking(Random(), (p,) * clients, unbiased)


def rolling(p: float, clients: int, dimension: int, sequential: bool = False) -> Masking:
    """Windows of a share p, one per coordinate."""
    scheme = Rolling(dimension, "sequential" if sequential else "shuffled")
    return Masking(scheme, (p,) * clients)


def epoch_windows(masking: Masking, seeds: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
    """The windows that trials with these seeds visit in an epoch: trials x rounds."""
    scheme = masking.scheme
    assert isinstance(scheme, Rolling)
    rounds = range(epoch * scheme.windows, (epoch + 1) * scheme.windows)
    return np.array([[scheme.window(Draw(int(s), r, 0)) for r in rounds] for s in seeds])
