"""What every problem of the lab offers: N client losses f_i in float64, at many points at once.

Points are arrays of shape clients x trials x coordinates: client i at each of its T points.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from submodel.errors import SubmodelError

FloatArray = NDArray[np.float64]


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

    def losses(self, w: FloatArray) -> FloatArray:
        """f_i at each point: clients x trials."""
        ...

    def gradients(self, w: FloatArray) -> FloatArray:
        """The gradients of f_i at each point."""
        ...

    def draw(self, seed: int, round_: int, steps: int, trials: int) -> NDArray[Any]:
        """The randomness xi of the stochastic gradients of one round: steps x clients x ..."""
        ...

    def stochastic_gradients(self, w: FloatArray, xi: NDArray[Any]) -> FloatArray:
        """The stochastic gradients at each point."""
        ...
