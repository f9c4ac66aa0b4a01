"""A scheme of one's own, in one file: `striped` units, evenly spread, that move on every round.

Runs as a script. From the command line the same scheme is

    submodel train --set scheme.name=own_scheme:Striped --set scheme.options.stride=3

in the folder of this file, or by the path of any module that can be imported.
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
    """Every client of capacity c holds ceil(c n) of the n units of an axis, as evenly spread as
    whole units can be; from round to round the pattern moves on by ``stride`` units.

    Where a rolling window holds neighbours, stripes hold units from all over the axis.
    """

    stride: int = 1

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """The pattern, moved on; it needs no randomness.

        >>> Striped().select("hidden", 6, 0.5, Draw(seed=0, round=1, client=0))
        array([False,  True, False,  True, False,  True])
        """
        held = units_held(capacity, size)
        stripes = np.arange(held) * size // held  # 0 to size - 1, held of them, all different
        mask = np.zeros(size, dtype=np.bool_)
        mask[(stripes + self.stride * draw.round) % size] = True
        return mask

    def problems(self, run: RunFacts) -> list[str]:
        """A stride that shares a factor with an axis's size would never move onto some units."""
        return [
            f"scheme.options.stride: {self.stride} and the {size} units of axis {axis} have a "
            f"common factor, so some units would not be visited as often as others"
            for axis, size in run.sizes.items()
            if np.gcd(self.stride, size) != 1
        ]


def main(rounds: int = 30) -> list[float]:
    """Check the scheme, train with it, compare with rolling; returns their test accuracies."""
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
