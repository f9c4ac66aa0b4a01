"""Problems in float64: N client losses f_i, evaluated at many points at once.

Points are arrays of shape clients x trials x coordinates: client i at each of its T points.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from submodel.errors import SubmodelError
from submodel.randomness import generator

Array = NDArray[np.float64]


class TheoryError(SubmodelError):
    """A problem or a setting that the lab cannot work with."""


class Problem(Protocol):
    """F(w) = (1/N) sum_i f_i(w)."""

    @property
    def clients(self) -> int:
        """N."""
        ...

    @property
    def dimension(self) -> int:
        """The number of coordinates, d."""
        ...

    @property
    def smoothness(self) -> float:
        """L: every f_i is L-smooth (Assumption 1)."""
        ...

    @property
    def convexity(self) -> float:
        """mu: every f_i is mu-strongly convex (Assumption 2); 0 if merely convex."""
        ...

    def losses(self, w: Array) -> Array:
        """f_i at each point: clients x trials."""
        ...

    def gradients(self, w: Array) -> Array:
        """The gradients of f_i at each point."""
        ...

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """The randomness xi of the stochastic gradients of one round: steps x clients x ..."""
        ...

    def sampled(self, w: Array, xi: NDArray[Any]) -> Array:
        """The stochastic gradients at each point."""
        ...


@dataclass(frozen=True)
class Quadratic:
    """f_i(w) = w'A_i w / 2 - b_i'w + c_i; stochastic gradients add Gaussian noise.

    The noise has E||xi||^2 = ``noise``^2, spread evenly over the coordinates.
    """

    matrices: Array  # clients x d x d
    vectors: Array  # clients x d
    noise: float = 0.0
    constants: Array | None = None

    @property
    def clients(self) -> int:
        """N."""
        return len(self.matrices)

    @property
    def dimension(self) -> int:
        """The number of coordinates, d."""
        return int(self.matrices.shape[1])

    @cached_property
    def eigenvalues(self) -> Array:
        """Of every client's matrix, ascending."""
        return np.asarray(np.linalg.eigvalsh(self.matrices), np.float64)

    @property
    def smoothness(self) -> float:
        """L, the largest eigenvalue of any client."""
        return float(self.eigenvalues[:, -1].max())

    @property
    def convexity(self) -> float:
        """mu, the least eigenvalue of any client."""
        least = float(self.eigenvalues[:, 0].min())
        return least if least > 1e-12 * self.smoothness else 0.0

    def losses(self, w: Array) -> Array:
        """f_i at each point."""
        values = np.einsum("itd,itd->it", w, w @ self.matrices / 2 - self.vectors[:, None])
        return np.asarray(values if self.constants is None else values + self.constants[:, None])

    def gradients(self, w: Array) -> Array:
        """A_i w - b_i."""
        return np.asarray(w @ self.matrices - self.vectors[:, None])

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Standard normal vectors; nothing if there is no noise."""
        if self.noise == 0:
            return np.zeros((steps, 1, 1, 1))
        rng = generator(seed, "noise", round_)
        return rng.standard_normal((steps, self.clients, trials, self.dimension))

    def sampled(self, w: Array, xi: NDArray[Any]) -> Array:
        """The gradient and its noise."""
        return np.asarray(self.gradients(w) + self.noise / np.sqrt(self.dimension) * xi)


def quadratics(
    clients: int = 4,
    dimension: int = 10,
    mu: float = 1.0,
    smoothness: float = 4.0,
    heterogeneity: float = 1.0,
    noise: float = 1.0,
    seed: int = 0,
) -> Quadratic:
    """Heterogeneous quadratics: eigenvalues spread over [mu, L], rotated for every client.

    The clients' optima lie around a common point of norm 1, at a distance of about
    ``heterogeneity``; both end eigenvalues are attained.

    >>> problem = quadratics(mu=0.5, smoothness=2.0)
    >>> round(problem.convexity, 9), round(problem.smoothness, 9)
    (0.5, 2.0)
    """
    if not 0 <= mu <= smoothness or smoothness <= 0:
        raise TheoryError(f"mu = {mu:g} and L = {smoothness:g}: 0 <= mu <= L and L > 0 are needed")
    rng = generator(seed, "quadratics")
    common = rng.standard_normal(dimension)
    common /= np.linalg.norm(common)
    base = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    spectrum = np.linspace(mu, smoothness, dimension)
    matrices, vectors = [], []
    for _ in range(clients):
        own = base
        if heterogeneity:
            own = np.linalg.qr(base + 0.3 * heterogeneity * rng.standard_normal(base.shape))[0]
        matrix = (own * spectrum) @ own.T
        away = rng.standard_normal(dimension) / np.sqrt(dimension)
        matrices.append((matrix + matrix.T) / 2)
        vectors.append(matrix @ (common + heterogeneity * away))
    return Quadratic(np.stack(matrices), np.stack(vectors), noise)


@dataclass(frozen=True)
class Samples(ABC):
    """What losses of examples share: n examples for each client, one set per trial or for all."""

    x: Array  # clients x (trials or 1) x n x features
    y: Array  # clients x (trials or 1) x n
    l2: float = 0.0

    @property
    def clients(self) -> int:
        """N."""
        return len(self.x)

    @property
    def dimension(self) -> int:
        """d, for linear models the number of features."""
        return int(self.x.shape[-1])

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """One example per step, uniformly and with replacement, as the paper samples."""
        rng = generator(seed, "samples", round_)
        return rng.integers(self.x.shape[2], size=(steps, self.clients, trials))

    def chosen(self, xi: NDArray[Any]) -> tuple[Array, Array]:
        """The examples xi, as sets of one."""
        i = np.arange(self.clients)[:, None]
        t = np.arange(xi.shape[1])[None] if self.x.shape[1] > 1 else np.zeros_like(xi)
        return self.x[i, t, xi][:, :, None], self.y[i, t, xi][:, :, None]

    def gradients(self, w: Array) -> Array:
        """The gradients of f_i at each point."""
        return self._gradients(w, self.x, self.y)

    def sampled(self, w: Array, xi: NDArray[Any]) -> Array:
        """The gradient at one example."""
        return self._gradients(w, *self.chosen(xi))

    @abstractmethod
    def _gradients(self, w: Array, x: Array, y: Array) -> Array:
        """The gradients over these examples."""


@dataclass(frozen=True)
class Logistic(Samples):
    """f_i(w) = mean log(1 + exp(-y x'w)) + l2 ||w||^2 / 2, labels -1 and 1."""

    @cached_property
    def smoothness(self) -> float:
        """L = largest eigenvalue of X'X/(4 n) over clients, plus l2."""
        return float(_grams(self.x)[..., -1].max()) / 4 + self.l2

    @property
    def convexity(self) -> float:
        """As l2 makes it: the loss itself is flat far out."""
        return self.l2

    def losses(self, w: Array) -> Array:
        """f_i at each point."""
        margins = self.y * (self.x @ w[..., None])[..., 0]
        penalty = self.l2 / 2 * np.square(w).sum(-1)
        return np.asarray(np.logaddexp(0, -margins).mean(-1) + penalty)

    def _gradients(self, w: Array, x: Array, y: Array) -> Array:
        margins = y * (x @ w[..., None])[..., 0]
        slopes = -y * np.exp(-np.logaddexp(0, margins)) / y.shape[-1]
        return np.asarray((slopes[..., None, :] @ x)[..., 0, :] + self.l2 * w)


@dataclass(frozen=True)
class Ridge(Samples):
    """f_i(w) = mean (x'w - y)^2 / 2 + l2 ||w||^2 / 2; `quadratic` is the same in closed form."""

    @cached_property
    def _eigenvalues(self) -> Array:
        return _grams(self.x)

    @property
    def smoothness(self) -> float:
        """L."""
        return float(self._eigenvalues[..., -1].max()) + self.l2

    @property
    def convexity(self) -> float:
        """The least eigenvalue of any client, mu."""
        least = float(self._eigenvalues[..., 0].min())
        return (least if least > 1e-12 * self.smoothness else 0.0) + self.l2

    def losses(self, w: Array) -> Array:
        """f_i at each point."""
        errors = (self.x @ w[..., None])[..., 0] - self.y
        return np.asarray(np.square(errors).mean(-1) / 2 + self.l2 / 2 * np.square(w).sum(-1))

    def _gradients(self, w: Array, x: Array, y: Array) -> Array:
        errors = ((x @ w[..., None])[..., 0] - y) / y.shape[-1]
        return np.asarray((errors[..., None, :] @ x)[..., 0, :] + self.l2 * w)

    def quadratic(self) -> Quadratic:
        """The same losses as matrices, for closed forms; of one dataset for all trials."""
        x, y, n = self.x[:, 0], self.y[:, 0], self.x.shape[2]
        matrices = x.transpose(0, 2, 1) @ x / n + self.l2 * np.eye(self.dimension)
        vectors = (x.transpose(0, 2, 1) @ y[..., None])[..., 0] / n
        return Quadratic(matrices, vectors, constants=np.square(y).mean(-1) / 2)


def _grams(x: Array) -> Array:
    """Eigenvalues of X'X/n of every set."""
    return np.asarray(np.linalg.eigvalsh(x.swapaxes(-1, -2) @ x / x.shape[-2]), np.float64)


@dataclass(frozen=True)
class Net(Samples):
    """A small non-convex net: v'tanh(U x), squared error; w is U row by row, v is fixed.

    With v trained too, w_0 = 0 would be a stationary point, where both algorithms stay for ever.
    L has no closed form over all of R^d; ``smoothness`` is the largest curvature met at points
    drawn in the ball of ``radius``, found by power iteration, and so a lower bound of it.
    """

    hidden: int = 2
    radius: float = 3.0

    @property
    def features(self) -> int:
        """Of one example."""
        return int(self.x.shape[-1])

    @property
    def dimension(self) -> int:
        """The number of weights, hidden x features."""
        return self.hidden * self.features

    @property
    def outgoing(self) -> Array:
        """The fixed weights v: of both signs and of different sizes."""
        order = np.arange(self.hidden)
        return np.asarray((-1.0) ** order * (2 - order / self.hidden))

    @property
    def convexity(self) -> float:
        """Not convex: 0."""
        return 0.0

    @cached_property
    def smoothness(self) -> float:
        """The largest curvature of any f_i at 64 points of the ball."""
        rng = generator(0, "curvature")
        shape = (self.clients, 64, self.dimension)
        w = rng.standard_normal(shape)
        w *= self.radius * rng.random((*shape[:2], 1)) / np.linalg.norm(w, axis=-1, keepdims=True)
        v = rng.standard_normal(shape)
        for _ in range(30):
            v /= np.linalg.norm(v, axis=-1, keepdims=True)
            v = (self.gradients(w + 1e-5 * v) - self.gradients(w - 1e-5 * v)) / 2e-5
        return float(np.linalg.norm(v, axis=-1).max())

    def _active(self, w: Array, x: Array) -> Array:
        u = w.reshape(*w.shape[:-1], self.hidden, self.features)
        return np.asarray(np.tanh(x @ u.swapaxes(-1, -2)))  # ... n x hidden

    def losses(self, w: Array) -> Array:
        """f_i at each point."""
        errors = self._active(w, self.x) @ self.outgoing - self.y
        return np.asarray(np.square(errors).mean(-1) / 2 + self.l2 / 2 * np.square(w).sum(-1))

    def _gradients(self, w: Array, x: Array, y: Array) -> Array:
        active = self._active(w, x)
        errors = (active @ self.outgoing - y) / y.shape[-1]
        back = errors[..., None] * (1 - active**2) * self.outgoing
        found = back.swapaxes(-1, -2) @ x
        return np.asarray(found.reshape(*found.shape[:-2], -1) + self.l2 * w)
