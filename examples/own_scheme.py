"""An own scheme in one file: evenly spaced (`striped`) units that shift in every round.

It runs as a script. On the command line, the scheme is used by

    submodel train --set scheme.name=own_scheme:Striped --set scheme.options.stride=3

in the folder of this file, or with the path of any importable module.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import nn

import submodel
from submodel.schemes import Draw, Mask, RunFacts, Scheme, units_held
from submodel.testing import check_scheme


@dataclass(frozen=True)
class Striped(Scheme):
    """A client of capacity c holds ceil(c n) of the n units of an axis, spread evenly.

    The pattern shifts by ``stride`` units from round to round. A rolling window holds neighbouring
    units, whereas stripes hold units of the whole axis.
    """

    stride: int = 1

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Return the shifted pattern, which needs no randomness.

        >>> Striped().select("hidden", 6, 0.5, Draw(seed=0, round=1, client=0))
        array([False,  True, False,  True, False,  True])
        """
        held = units_held(capacity, size)
        stripes = np.arange(held) * size // held  # `held` distinct units from 0 to size - 1
        mask = np.zeros(size, dtype=np.bool_)
        mask[(stripes + self.stride * draw.round) % size] = True
        return mask

    def problems(self, run: RunFacts) -> list[str]:
        """Reject strides with a common factor with the size of an axis, which skip some units."""
        return [
            f"scheme.options.stride: {self.stride} and the {size} units of axis {axis} have a "
            f"common factor, so some units would not be visited as often as others"
            for axis, size in run.sizes.items()
            if np.gcd(self.stride, size) != 1
        ]


def main(rounds: int = 30) -> list[float]:
    """Check the scheme, train with it and with rolling, and return both test accuracies."""
    path = f"{__name__}:Striped"
    for what in check_scheme(path):
        print(f"holds, {what}")

    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    accuracies = []
    for scheme in ({"name": path, "options": {"stride": 3}}, {"name": "rolling"}):
        config = {
            "scheme": scheme,
            "clients": {"count": 20, "per_round": 5, "capacities": [1, "1/2", "1/4"]},
            "train": {"rounds": rounds, "evaluate_every": rounds},
        }
        accuracy = submodel.train(net, submodel.digits(), config).accuracy or 0.0
        print(f"{scheme['name']}: test accuracy {accuracy:.1%} after {rounds} rounds")
        accuracies.append(accuracy)
    return accuracies


if __name__ == "__main__":
    main()
