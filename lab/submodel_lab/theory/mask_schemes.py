"""Schemes that only the lab has: a probability for every coordinate, and lists of masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from submodel.randomness import generator
from submodel.schemes import Draw, Mask, Scheme
from submodel_lab.theory.problems import FloatArray


@dataclass(frozen=True, eq=False)
class CoordinateChances(Scheme):
    """Every coordinate by itself; with equal probabilities it is `Random`, to the bit."""

    probabilities: FloatArray  # clients x d

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """A size of several d is so many draws of d.

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
    """One entry of a list a round: what each client holds (entries x clients x d).

    ``together`` has all clients take the same entry; otherwise everyone draws by themselves.
    """

    masks: FloatArray
    chances: FloatArray
    together: bool = True

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """The client's part of the entry that is drawn.

        >>> scheme = MaskList(np.eye(2)[:, None], np.array([0.0, 1.0]))
        >>> scheme.select("coordinates", 2, 0.5, Draw(0, 0, 0))
        array([False,  True])
        """
        who = () if self.together else (draw.client,)
        place = generator(draw.seed, "mask list", draw.round, *who).random()
        entry = int(np.searchsorted(np.cumsum(self.chances)[:-1], place, side="right"))
        return np.asarray(self.masks[entry, draw.client] > 0)
