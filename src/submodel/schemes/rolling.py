"""The whole model (FedAvg), the first units (HeteroFL), and rolling windows (FedRolex)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from submodel.core.options import Count, Section
from submodel.core.randomness import generator
from submodel.model.axes.declare import prefix, units_held
from submodel.schemes.scheme import Draw, Mask, RunFacts, Scheme, SchemeContext


@dataclass(frozen=True)
class Full(Scheme):
    """FedAvg (McMahan et al. 2017): every client holds the whole model."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Select all units.

        >>> Full().select("hidden", 3, 1.0, Draw(0, 0, 0))
        array([ True,  True,  True])
        """
        return np.ones(size, dtype=np.bool_)


@dataclass(frozen=True)
class Static(Scheme):
    """HeteroFL (Diao et al. 2021): the first units, the same in every round."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Select the first units, so that smaller cuts nest in larger ones.

        >>> Static().select("hidden", 4, 0.5, Draw(0, 0, 0))
        array([ True,  True, False, False])
        """
        return prefix(size, units_held(capacity, size))


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, windows: int) -> NDArray[np.int64]:
    return generator(seed, "permutation", epoch).permutation(windows)


@dataclass(frozen=True)
class Rolling(Scheme):
    """A window that visits every position once per epoch (Algorithm 2; FedRolex, Alam et al. 2022).

    All clients share the window's start; its length depends on the client. ``shuffled`` draws one
    permutation of the windows per epoch, ``sequential`` visits them in order. ``only`` fixes one
    window, for the output step.
    """

    windows: int
    order: Literal["shuffled", "sequential"] = "shuffled"
    only: int | None = None

    class Options(Section):
        """The keys of ``rolling``."""

        order: Literal["shuffled", "sequential"] = Field(
            "shuffled", description="one permutation per epoch (the paper), or FedRolex's order"
        )
        windows: Count | None = Field(
            None, description="R, windows per epoch (default: one per unit of the largest axis)"
        )

    @classmethod
    def configured(cls, options: Options, context: SchemeContext) -> Self:
        """Make the scheme; ``windows`` is by default one per unit of the largest axis."""
        return cls(options.windows or default_windows(context.sizes), options.order)

    def window(self, draw: Draw) -> int:
        """Return the window of this round: sigma_e(r), with round = e R + r."""
        if self.only is not None:
            return self.only
        epoch, r = divmod(draw.round, self.windows)
        if self.order == "sequential":
            return r
        return int(_permutation(draw.seed, epoch, self.windows)[r])

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:  # noqa: ARG002
        """Select the units from the window's start on, cyclically.

        >>> Rolling(4, "sequential").select("hidden", 4, 0.5, Draw(0, 3, 0))
        array([ True, False, False,  True])
        """
        j = self.window(draw)
        if size <= self.windows:
            start, length = j % size, units_held(capacity, size)
        else:  # fewer windows than units: a window consists of R equal pieces
            pieces = units_held(capacity, self.windows)
            start = j * size // self.windows
            length = (j + pieces) * size // self.windows - start
        mask = np.zeros(size, dtype=np.bool_)
        mask[start : start + length] = True
        mask[: max(0, start + length - size)] = True
        return mask

    def problems(self, run: RunFacts) -> list[str]:
        """Return the reasons why the windows do not visit every unit equally often."""
        shares = [*run.capacities, *run.least.values()]
        return [f"scheme.windows: {p}" for p in window_problems(self.windows, run.sizes, shares)]

    def output_passes(self) -> Sequence[Scheme]:
        """Return one scheme per window, as Algorithm 2's output averages over all R of them."""
        return [replace(self, only=j) for j in range(self.windows)]


def default_windows(sizes: Mapping[str, int]) -> int:
    """Return one window per unit of the largest axis, or the least number that every axis divides.

    >>> default_windows({"a": 16, "b": 32})
    32
    """
    return math.lcm(*sizes.values())


def window_problems(
    windows: int, sizes: Mapping[str, int], capacities: Iterable[float]
) -> list[str]:
    """Return the reasons why windows do not visit every unit equally often; empty if they do.

    >>> window_problems(8, {"a": 16, "b": 32}, [1, 0.5])
    []
    >>> window_problems(48, {"a": 16, "b": 32}, [1])
    ['48 windows are more than the 32 units of axis b']
    """
    most = default_windows(sizes)
    if windows > most:
        axis = max(sizes, key=lambda name: sizes[name])
        return [f"{windows} windows are more than the {sizes[axis]} units of axis {axis}"]
    problems = []
    for axis, size in sizes.items():
        if windows % size and size % windows:
            problems.append(
                f"{windows} windows do not divide the {size} units of axis {axis} evenly; "
                f"{most} windows suit every axis"
            )
        elif size > windows:
            problems += [
                f"capacity {c:g} is not a whole number of the {windows} windows' pieces; "
                f"give more windows ({most} suit every capacity)"
                for c in capacities
                if Fraction(c).limit_denominator(1 << 20) * windows % 1
            ]
    return list(dict.fromkeys(problems))
