"""What masking makes of a problem: F_p, F_m, their optima, and the distance to the original.

Random masks: F_p(w) = (1/N) sum_i E f_i(m_i (.) w), m_i ~ Ber(p_i). Rolling: F_m is the mean over
all windows. Quadratics need only the masks' first two moments, so both are exact for them:
E[(m.w)'A(m.w)] = w'(A o E[mm'])w. Other problems average over a list of masks: all windows, all
2^d masks for d <= 10, or else a fixed list of Bernoulli masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from submodel.extras import needs_extra
from submodel.model.cut import COORDINATES
from submodel.randomness import generator
from submodel.schemes import Draw, Random, Rolling, Scheme
from submodel.theory.problems import Array, Problem, Quadratic, TheoryError

with needs_extra("server", "the lab"):
    from scipy import optimize

_ENUMERATED = 10
_LISTED = 2048


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
    def scales(self) -> Array:
        """What the held coordinates are multiplied with: one number per client."""
        return np.array([1 / p if self.unbiased else 1.0 for p in self.capacities])

    @property
    def _whole(self) -> bool:
        return all(p == 1 for p in self.capacities)

    def enumerated(self, dimension: int) -> bool:
        """Whether `listed` has all the masks, and not a fixed choice of them."""
        return isinstance(self.scheme, Rolling) or self._whole or dimension <= _ENUMERATED

    def listed(self, dimension: int) -> tuple[Array, Array]:
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
        if dimension <= _ENUMERATED:
            every = np.array(list(product((0.0, 1.0), repeat=dimension)))
            p = np.array(self.capacities)[:, None]
            held = every.sum(1)[None]
            chances = p**held * (1 - p) ** (dimension - held)
            return np.broadcast_to(every, (len(self.capacities), *every.shape)), chances
        uniform = generator(0, "listed masks").random((_LISTED // 2, dimension))
        uniform = np.concatenate([uniform, 1 - uniform])  # antithetic: means are exact sooner
        masks_ = (uniform[None] < np.array(self.capacities)[:, None, None]).astype(float)
        return masks_, np.full(masks_.shape[:2], 1 / _LISTED)

    def moments(self, dimension: int) -> tuple[Array, Array]:
        """E[m_i] (clients x d) and E[m_i m_i'] (clients x d x d), scaled; exact."""
        scales = self.scales
        if isinstance(self.scheme, Rolling):
            masks, chances = self.listed(dimension)
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


class Masked:
    """The objective that masked training minimises."""

    def __init__(self, problem: Problem, masking: Masking | None = None) -> None:
        if masking is not None and len(masking.capacities) != problem.clients:
            raise TheoryError(
                f"{len(masking.capacities)} capacities for {problem.clients} clients: give one each"
            )
        self.problem = problem
        self.masking = masking or bernoulli(1.0, problem.clients)
        self._exact: Quadratic | None = None
        if isinstance(problem, Quadratic):
            first, second = self.masking.moments(problem.dimension)
            self._exact = Quadratic(
                problem.matrices * second, problem.vectors * first, constants=problem.constants
            )
        else:
            masks, self._chances = self.masking.listed(problem.dimension)
            self._masks = masks * self.masking.scales[:, None, None]

    def value(self, w: Array) -> float:
        """F_p(w) or F_m(w) at one point."""
        if self._exact is not None:
            return float(self._exact.losses(_everywhere(w, self._exact)).mean())
        values = self.problem.losses(self._masks * w)
        return float((values * self._chances).sum(1).mean())

    def gradient(self, w: Array) -> Array:
        """Its gradient."""
        if self._exact is not None:
            return np.asarray(self._exact.gradients(_everywhere(w, self._exact))[:, 0].mean(0))
        found = self._masks * self.problem.gradients(self._masks * w)
        return np.asarray(np.einsum("im,imd->d", self._chances, found) / self.problem.clients)

    def gradients_at(self, points: Array) -> Array:
        """The gradient at each of the points (points x d)."""
        if self._exact is not None:
            many = np.broadcast_to(points, (self.problem.clients, *points.shape))
            return np.asarray(self._exact.gradients(many).mean(0))
        return np.stack([self.gradient(w) for w in points])

    def optimum(self, radius: float) -> Array:
        """w*(p): the least point in the ball; exact for quadratics, L-BFGS otherwise."""
        d = self.problem.dimension
        if self._exact is not None:
            return _ball_minimum(self._exact.matrices.mean(0), self._exact.vectors.mean(0), radius)
        found = optimize.minimize(
            lambda w: (self.value(w), self.gradient(w)), np.zeros(d), jac=True, method="L-BFGS-B",
            options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10},
        )  # fmt: skip
        w = np.asarray(found.x)
        norm = float(np.linalg.norm(w))
        if norm > radius:
            raise TheoryError(
                f"the optimum has norm {norm:.3g}, outside the ball of radius {radius:g}: "
                "give a larger radius"
            )
        return w

    def spread_at(self, w: Array) -> float:
        """(1/N) sum_i E||m_i (.) grad f_i(m_i (.) w) - grad F_p(w)||^2; zeta^2 is its largest."""
        return self.power_at(w) - float(np.square(self.gradient(w)).sum())

    def power_at(self, w: Array) -> float:
        """(1/N) sum_i E||m_i (.) grad f_i(m_i (.) w)||^2; sigma_*^2 at w*(p) (Definition 1)."""
        if self._exact is None:
            masks, chances = self._masks, self._chances
        else:
            listed, chances = self.masking.listed(self.problem.dimension)
            masks = listed * self.masking.scales[:, None, None]
        found = masks * self.problem.gradients(masks * w)
        return float((np.square(found).sum(-1) * chances).sum(1).mean())


def _everywhere(w: Array, problem: Problem) -> Array:
    return np.broadcast_to(w, (problem.clients, 1, len(w)))


def _ball_minimum(matrix: Array, vector: Array, radius: float) -> Array:
    """The least point of w'Aw/2 - b'w over ||w|| <= radius, by the eigenvalues of A."""
    values, basis = np.linalg.eigh(matrix)
    turned = basis.T @ vector
    if values[0] <= 1e-12 * values[-1]:
        raise TheoryError(
            "the masked problem is singular: its optimum is not unique; raise mu (or l2), or p"
        )
    if np.linalg.norm(turned / values) <= radius:
        return np.asarray(basis @ (turned / values))

    def outside(shift: float) -> float:
        return float(np.linalg.norm(turned / (values + shift))) - radius

    shift = optimize.brentq(outside, 0.0, float(np.linalg.norm(vector)) / radius)
    return np.asarray(basis @ (turned / (values + shift)))


def window_masks(masking: Masking, seeds: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
    """The windows that trials with these seeds visit in an epoch: trials x rounds."""
    scheme = masking.scheme
    assert isinstance(scheme, Rolling)
    rounds = range(epoch * scheme.windows, (epoch + 1) * scheme.windows)
    return np.array([[scheme.window(Draw(int(s), r, 0)) for r in rounds] for s in seeds])
