"""Federated Dropout: a fixed number of units per axis, drawn afresh for every client and round."""

from __future__ import annotations

from dataclasses import dataclass

from submodel.schemes.base import Draw, Mask, Scheme
from submodel.schemes.random.scheme import Random

_FIXED_SIZE = Random("fixed")


@dataclass(frozen=True)
class Dropout(Scheme):
    """Federated Dropout (Caldas, Konecny, McMahan, Talwalkar 2018).

    "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements": of the n
    units of an axis, a client of capacity c holds a set of ceil(c n), uniform among all such sets
    and independent over clients, rounds and axes.

    It is `random` with ``sampling = "fixed"``, to the bit. The paper's Algorithm 1 takes every unit
    by itself with probability c, so its masks have random sizes: c n on average, where these have
    ceil(c n) always, and all clients of a capacity hold tensors of one shape.
    """

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Exactly the share, drawn by (seed, round, client, axis).

        >>> int(Dropout().select("hidden", 8, 0.5, Draw(0, 0, 0)).sum())
        4
        """
        return _FIXED_SIZE.select(axis, size, capacity, draw)
