"""A small net of tanh units: a problem that is not convex."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from submodel_lab.theory.problems.base import FloatArray
from submodel_lab.theory.problems.curvature import largest_curvature
from submodel_lab.theory.problems.examples import Samples


@dataclass(frozen=True)
class Net(Samples):
    """A small non-convex net: v'tanh(U x), squared error; w is U row by row, v is fixed.

    With v trained too, w_0 = 0 would be a stationary point, where both algorithms stay for ever.
    L has no closed form over all of R^d; ``smoothness`` is the largest curvature met at points
    drawn in the ball of ``radius``, found by power iteration, and so a lower bound of it.
    """

    hidden_units: int = 2
    radius: float = 3.0

    @property
    def features(self) -> int:
        """Of one example."""
        return int(self.x.shape[-1])

    @property
    def dimension(self) -> int:
        """The number of weights, hidden x features."""
        return self.hidden_units * self.features

    @property
    def outgoing(self) -> FloatArray:
        """The fixed weights v: of both signs and of different sizes."""
        order = np.arange(self.hidden_units)
        return np.asarray((-1.0) ** order * (2 - order / self.hidden_units))

    @property
    def convexity(self) -> float:
        """Not convex: 0."""
        return 0.0

    @cached_property
    def smoothness(self) -> float:
        """The largest curvature of any f_i at 64 points of the ball."""
        return largest_curvature(self, self.radius)

    def _active(self, w: FloatArray, x: FloatArray) -> FloatArray:
        u = w.reshape(*w.shape[:-1], self.hidden_units, self.features)
        return np.asarray(np.tanh(x @ u.swapaxes(-1, -2)))  # ... n x hidden

    def losses(self, w: FloatArray) -> FloatArray:
        """f_i at each point."""
        errors = self._active(w, self.x) @ self.outgoing - self.y
        return np.asarray(self._mean(np.square(errors)) / 2 + self.l2 / 2 * np.square(w).sum(-1))

    def _gradients(self, w: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        active = self._active(w, x)
        errors = (active @ self.outgoing - y) / self._divisor(y)
        back = errors[..., None] * (1 - active**2) * self.outgoing
        weight_gradients = back.swapaxes(-1, -2) @ x
        return np.asarray(weight_gradients.reshape(*weight_gradients.shape[:-2], -1) + self.l2 * w)
