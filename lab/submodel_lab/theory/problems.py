"""Problems of N client losses in float64 at many points: quadratics, linear models, a net.

Points are arrays of shape clients x trials x coordinates: client i at each of its T points.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from submodel.core import SubmodelError, generator

_CURVATURE_POINTS, _POWER_ITERATIONS, _CURVATURE_STEP = 64, 30, 1e-5
FloatArray = NDArray[np.float64]


class TheoryError(SubmodelError):
    """A problem or a setting that the lab cannot use."""


class Problem(Protocol):
    """F(w) = (1/N) sum_i f_i(w)."""

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        ...

    @property
    def dimension(self) -> int:
        """Number of coordinates, d."""
        ...

    @property
    def smoothness(self) -> float:
        """L: every f_i is L-smooth (Assumption 1)."""
        ...

    @property
    def convexity(self) -> float:
        """mu: every f_i is mu-strongly convex (Assumption 2); 0 if merely convex."""
        ...

    def losses(self, w: FloatArray) -> FloatArray:
        """Return f_i at each point: clients x trials."""
        ...

    def gradients(self, w: FloatArray) -> FloatArray:
        """Return the gradients of f_i at each point."""
        ...

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Draw the randomness xi of the stochastic gradients of a round: steps x clients x ..."""
        ...

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """Return the stochastic gradients at each point."""
        ...


def mean_losses(problem: Problem, points: FloatArray) -> FloatArray:
    """Return F at each of the points (points x d)."""
    many = np.broadcast_to(points, (problem.clients, *points.shape))
    return np.asarray(problem.losses(many).mean(0))


def largest_curvature(problem: Problem, radius: float, centre: FloatArray | None = None) -> float:
    """Return the largest curvature of any f_i at 64 points of a ball, by power iteration.

    It is a lower bound of the largest curvature in the ball.
    """
    rng = generator(0, "curvature")
    shape = (problem.clients, _CURVATURE_POINTS, problem.dimension)
    w = rng.standard_normal(shape)
    w *= radius * rng.random((*shape[:2], 1)) / np.linalg.norm(w, axis=-1, keepdims=True)
    if centre is not None:
        w = w + centre
    v = rng.standard_normal(shape)
    for _ in range(_POWER_ITERATIONS):
        v /= np.linalg.norm(v, axis=-1, keepdims=True)
        change = problem.gradients(w + _CURVATURE_STEP * v) - problem.gradients(
            w - _CURVATURE_STEP * v
        )
        v = change / (2 * _CURVATURE_STEP)
    return float(np.linalg.norm(v, axis=-1).max())


@dataclass(frozen=True)
class Quadratic:
    """f_i(w) = w'A_i w / 2 - b_i'w + c_i; stochastic gradients add Gaussian noise.

    The noise has E||xi||^2 = ``noise``^2, spread evenly over the coordinates.
    """

    matrices: FloatArray  # clients x d x d
    vectors: FloatArray  # clients x d
    noise: float = 0.0
    constants: FloatArray | None = None

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.matrices)

    @property
    def dimension(self) -> int:
        """Number of coordinates, d."""
        return int(self.matrices.shape[1])

    @cached_property
    def eigenvalues(self) -> FloatArray:
        """Eigenvalues of every client's matrix, ascending."""
        return np.asarray(np.linalg.eigvalsh(self.matrices), np.float64)

    @property
    def smoothness(self) -> float:
        """Largest eigenvalue of any client, L."""
        return float(self.eigenvalues[:, -1].max())

    @property
    def convexity(self) -> float:
        """Least eigenvalue of any client, mu."""
        least = float(self.eigenvalues[:, 0].min())
        return least if least > 1e-12 * self.smoothness else 0.0

    def losses(self, w: FloatArray) -> FloatArray:
        """Return f_i at each point."""
        values = np.einsum("itd,itd->it", w, w @ self.matrices / 2 - self.vectors[:, None])
        return np.asarray(values if self.constants is None else values + self.constants[:, None])

    def gradients(self, w: FloatArray) -> FloatArray:
        """Return A_i w - b_i."""
        return np.asarray(w @ self.matrices - self.vectors[:, None])

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Draw standard normal vectors, or return zeros without noise."""
        if self.noise == 0:
            return np.zeros((steps, 1, 1, 1))
        rng = generator(seed, "noise", round_)
        return rng.standard_normal((steps, self.clients, trials, self.dimension))

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """Return the gradients with noise."""
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
    """Make heterogeneous quadratics: eigenvalues spread over [mu, L], rotated for every client.

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
        client_basis = base
        if heterogeneity:
            client_basis = np.linalg.qr(
                base + 0.3 * heterogeneity * rng.standard_normal(base.shape)
            )[0]
        matrix = (client_basis * spectrum) @ client_basis.T
        away = rng.standard_normal(dimension) / np.sqrt(dimension)
        matrices.append((matrix + matrix.T) / 2)
        vectors.append(matrix @ (common + heterogeneity * away))
    return Quadratic(np.stack(matrices), np.stack(vectors), noise)


@dataclass(frozen=True)
class Samples(ABC):
    """Base of losses over examples: n examples for each client, one set per trial or for all.

    Clients may have different numbers of examples, ``sizes``; then n is the largest, and padding is
    zero and has no weight. `pad_examples` makes such arrays. F is always the mean of the clients'
    means, as in the paper.
    """

    x: FloatArray  # clients x (trials or 1) x n x features
    y: FloatArray  # clients x (trials or 1) x n
    l2: float = 0.0
    sizes: tuple[int, ...] | None = field(default=None, kw_only=True)  # n_i; None: all have n

    def __post_init__(self) -> None:
        if self.x.ndim != 4 or self.y.shape != self.x.shape[:3]:
            raise TheoryError(
                f"x of shape {self.x.shape} and y of shape {self.y.shape}: clients x (trials or 1) "
                "x n x features, and the same without features, are needed"
            )
        if self.sizes is None:
            return
        n = self.x.shape[2]
        if len(self.sizes) != self.clients or not all(1 <= size <= n for size in self.sizes):
            raise TheoryError(f"sizes {self.sizes}: one for each client, from 1 to {n}")
        absent = self.example_weights[:, None] == 0
        if np.any(self.x * absent[..., None]) or np.any(self.y * absent):
            raise TheoryError("padding beyond a client's examples must be zero (see pad_examples)")

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of examples n_i of every client."""
        return np.array(self.sizes or (self.x.shape[2],) * self.clients)

    @property
    def example_weights(self) -> FloatArray:
        """Weights 1/n_i of the client's examples, 0 for padding: clients x n."""
        counts = self.counts[:, None]
        return np.where(np.arange(self.x.shape[2]) < counts, 1 / counts, 0.0)

    def _mean(self, values: FloatArray) -> FloatArray:
        """Average over each client's own examples (the last axis)."""
        if self.sizes is None:
            return np.asarray(values.mean(-1))
        return np.asarray((values * self.example_weights[:, None]).sum(-1))

    def _divisor(self, y: FloatArray) -> int | FloatArray:
        """Return the divisor of a sum over all examples, or over one drawn example."""
        if self.sizes is None or y.shape[-1] == 1:
            return int(y.shape[-1])
        return self.counts[:, None, None].astype(float)

    def _gram_eigenvalues(self) -> FloatArray:
        n = self._divisor(self.y)
        divisor = n if isinstance(n, int) else n[..., None]
        return np.asarray(np.linalg.eigvalsh(self.x.swapaxes(-1, -2) @ self.x / divisor), float)

    @property
    def clients(self) -> int:
        """Number of clients, N."""
        return len(self.x)

    @property
    def dimension(self) -> int:
        """Number of coordinates, d; for linear models the number of features."""
        return int(self.x.shape[-1])

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """Draw one example per step, uniformly and with replacement, as in the paper."""
        rng = generator(seed, "samples", round_)
        high = self.x.shape[2] if self.sizes is None else self.counts[:, None]
        return rng.integers(high, size=(steps, self.clients, trials))

    def examples_at(self, xi: NDArray[Any]) -> tuple[FloatArray, FloatArray]:
        """Return the examples xi as sets of one."""
        i = np.arange(self.clients)[:, None]
        t = np.arange(xi.shape[1])[None] if self.x.shape[1] > 1 else np.zeros_like(xi)
        return self.x[i, t, xi][:, :, None], self.y[i, t, xi][:, :, None]

    def gradients(self, w: FloatArray) -> FloatArray:
        """Return the gradients of f_i at each point."""
        return self._gradients(w, self.x, self.y)

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """Return the gradients at one example."""
        return self._gradients(w, *self.examples_at(xi))

    @abstractmethod
    def _gradients(self, w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        """Return the gradients over these examples."""


@dataclass(frozen=True)
class Logistic(Samples):
    """f_i(w) = mean log(1 + exp(-y x'w)) + l2 ||w||^2 / 2, labels -1 and 1."""

    @cached_property
    def smoothness(self) -> float:
        """Largest eigenvalue of X'X/(4 n) over clients, plus l2: L."""
        return float(self._gram_eigenvalues()[..., -1].max()) / 4 + self.l2

    @property
    def convexity(self) -> float:
        """Strong convexity, mu = l2, as the loss itself is flat far out."""
        return self.l2

    def losses(self, w: FloatArray) -> FloatArray:
        """Return f_i at each point."""
        margins = self.y * (self.x @ w[..., None])[..., 0]
        penalty = self.l2 / 2 * np.square(w).sum(-1)
        return np.asarray(self._mean(np.logaddexp(0, -margins)) + penalty)

    def _gradients(self, w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        margins = y * (x @ w[..., None])[..., 0]
        slopes = -y * np.exp(-np.logaddexp(0, margins)) / self._divisor(y)
        return np.asarray((slopes[..., None, :] @ x)[..., 0, :] + self.l2 * w)


@dataclass(frozen=True)
class Ridge(Samples):
    """f_i(w) = mean (x'w - y)^2 / 2 + l2 ||w||^2 / 2; `quadratic` gives the closed form."""

    @cached_property
    def _eigenvalues(self) -> FloatArray:
        return self._gram_eigenvalues()

    @property
    def smoothness(self) -> float:
        """Largest eigenvalue of X'X/n over clients, plus l2: L."""
        return float(self._eigenvalues[..., -1].max()) + self.l2

    @property
    def convexity(self) -> float:
        """Least eigenvalue of any client, mu."""
        least = float(self._eigenvalues[..., 0].min())
        return (least if least > 1e-12 * self.smoothness else 0.0) + self.l2

    def losses(self, w: FloatArray) -> FloatArray:
        """Return f_i at each point."""
        errors = (self.x @ w[..., None])[..., 0] - self.y
        return np.asarray(self._mean(np.square(errors)) / 2 + self.l2 / 2 * np.square(w).sum(-1))

    def _gradients(self, w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        errors = ((x @ w[..., None])[..., 0] - y) / self._divisor(y)
        return np.asarray((errors[..., None, :] @ x)[..., 0, :] + self.l2 * w)

    def quadratic(self) -> Quadratic:
        """Return the same losses as matrices, for one dataset of all trials."""
        x, y, n = self.x[:, 0], self.y[:, 0], self.counts[:, None, None]
        matrices = x.transpose(0, 2, 1) @ x / n + self.l2 * np.eye(self.dimension)
        vectors = (x.transpose(0, 2, 1) @ y[..., None])[..., 0] / n[..., 0]
        return Quadratic(matrices, vectors, constants=self._mean(np.square(self.y))[:, 0] / 2)


def pad_examples(
    x: Sequence[FloatArray], y: Sequence[FloatArray]
) -> tuple[FloatArray, FloatArray, tuple[int, ...]]:
    """Pad clients with different numbers of examples to arrays x, y and ``sizes``.

    >>> x, y, sizes = pad_examples([np.ones((2, 3)), np.ones((1, 3))], [np.ones(2), np.ones(1)])
    >>> x.shape, y[:, 0].tolist(), sizes
    ((2, 1, 2, 3), [[1.0, 1.0], [1.0, 0.0]], (2, 1))
    """
    sizes = tuple(len(client_y) for client_y in y)
    if sizes != tuple(len(client_x) for client_x in x) or not sizes or min(sizes) < 1:
        raise TheoryError("x and y must have as many examples for each client, at least one")
    if len({client_x.shape[1:] for client_x in x}) > 1 or x[0].ndim != 2:
        raise TheoryError("every client's x must be examples x features, of the same features")
    all_x = np.zeros((len(x), 1, max(sizes), x[0].shape[1]))
    all_y = np.zeros(all_x.shape[:3])
    for i, size in enumerate(sizes):
        all_x[i, 0, :size], all_y[i, 0, :size] = x[i], y[i]
    return all_x, all_y, sizes


@dataclass(frozen=True)
class Net(Samples):
    """A small non-convex net: v'tanh(U x), squared error; w is U row by row, v is fixed.

    If v were trained too, w_0 = 0 would be a stationary point, which both algorithms never leave.
    L has no closed form over R^d; ``smoothness`` is the largest curvature at drawn points of the
    ball of ``radius``, by power iteration, a lower bound.
    """

    hidden_units: int = 2
    radius: float = 3.0

    @property
    def features(self) -> int:
        """Number of features of an example."""
        return int(self.x.shape[-1])

    @property
    def dimension(self) -> int:
        """Number of weights, hidden x features: d."""
        return self.hidden_units * self.features

    @property
    def outgoing(self) -> FloatArray:
        """Fixed weights v, of both signs and different sizes."""
        order = np.arange(self.hidden_units)
        return np.asarray((-1.0) ** order * (2 - order / self.hidden_units))

    @property
    def convexity(self) -> float:
        """Strong convexity, mu = 0."""
        return 0.0

    @cached_property
    def smoothness(self) -> float:
        """Largest curvature of any f_i at 64 points of the ball."""
        return largest_curvature(self, self.radius)

    def _active(self, w: FloatArray, x: FloatArray) -> FloatArray:
        u = w.reshape(*w.shape[:-1], self.hidden_units, self.features)
        return np.asarray(np.tanh(x @ u.swapaxes(-1, -2)))  # ... n x hidden

    def losses(self, w: FloatArray) -> FloatArray:
        """Return f_i at each point."""
        errors = self._active(w, self.x) @ self.outgoing - self.y
        return np.asarray(self._mean(np.square(errors)) / 2 + self.l2 / 2 * np.square(w).sum(-1))

    def _gradients(self, w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        active = self._active(w, x)
        errors = (active @ self.outgoing - y) / self._divisor(y)
        back = errors[..., None] * (1 - active**2) * self.outgoing
        weight_gradients = back.swapaxes(-1, -2) @ x
        return np.asarray(weight_gradients.reshape(*weight_gradients.shape[:-2], -1) + self.l2 * w)
