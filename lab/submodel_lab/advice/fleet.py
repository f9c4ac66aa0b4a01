"""What advice is asked for: a fleet, a budget, a goal, and what is known of model and data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from submodel.amounts import parse_capacity
from submodel.data import DEFAULT_LABELS
from submodel.errors import ConfigError
from submodel.experiments import BudgetKind

if TYPE_CHECKING:
    from submodel.config import Config


class Goal(StrEnum):
    """What is to be good in the end."""

    FULL_MODEL = "full-model"
    DEVICES = "devices"


GOAL_MEASURES = {Goal.FULL_MODEL: "accuracy", Goal.DEVICES: "mean over sizes"}
"""What decides, by goal."""


@dataclass(frozen=True)
class Case:
    """What advice is asked for.

    Args:
        fleet: (capacity, share of the devices), the largest capacity first.
        goal: what is to be good.
        budget: what is scarce; None: nothing, runs go on until they are flat.
        rounds: how many there can be; None: not known, or as many as it takes.
        model: its name; None: not told.
        data: the name of the dataset; None: not told.
        labels: how many labels a client has; None: not told, or not dealt out by labels.
        split: how data is dealt out; None: not told.
    """

    fleet: Sequence[tuple[float, float]]
    goal: Goal
    budget: BudgetKind | None = None
    rounds: int | None = None
    model: str | None = None
    data: str | None = None
    labels: int | None = None
    split: str | None = None

    @property
    def smallest(self) -> float:
        """The smallest capacity."""
        return min(capacity for capacity, _ in self.fleet)


def fleet_shares(
    capacities: Sequence[float], proportions: Sequence[float] | None
) -> list[tuple[float, float]]:
    """(capacity, share of the clients), the largest first, each once.

    Args:
        capacities: of a configuration.
        proportions: their weights; None: all alike.

    >>> fleet_shares([0.25, 1.0, 0.25], None)
    [(1.0, 0.3333), (0.25, 0.6667)]
    """
    weights = proportions or [1.0] * len(capacities)
    shares: dict[float, float] = {}
    for capacity, weight in zip(capacities, weights, strict=True):
        shares[capacity] = shares.get(capacity, 0.0) + weight / sum(weights)
    return [(c, float(f"{shares[c]:.4g}")) for c in sorted(shares, reverse=True)]


def parse_fleet(text: str) -> list[tuple[float, float]]:
    """Capacities and their shares as people write them; shares need not add up to one.

    Args:
        text: ``CAPACITY:SHARE,...``; without shares all are alike.

    >>> parse_fleet("1:0.2,1/4:0.8"), parse_fleet("1/2, 1")
    ([(1.0, 0.2), (0.25, 0.8)], [(1.0, 0.5), (0.5, 0.5)])
    """
    capacities, shares = [], []
    for part in text.split(","):
        capacity, sign, share = part.partition(":")
        try:
            value = float(Fraction(share.strip())) if sign else 1.0
        except (ValueError, ZeroDivisionError):
            value = 0.0
        if not 0 < value < float("inf"):
            raise ConfigError([f"--fleet: {part.strip()!r} is not CAPACITY:SHARE, such as 1/4:0.8"])
        try:
            capacities.append(parse_capacity(capacity))
        except ConfigError as error:
            raise ConfigError([f"--fleet: {problem}" for problem in error.problems]) from None
        shares.append(value)
    if len({":" in part for part in text.split(",")}) == 2:
        raise ConfigError(["--fleet: give a share to every capacity, or to none"])
    return fleet_shares(capacities, shares)


def case_of(config: Config, goal: Goal, budget: BudgetKind | None, rounds: int | None) -> Case:
    """What a configuration tells.

    Args:
        config: its clients, model and data.
        goal: what is to be good.
        budget: what is scarce.
        rounds: how many there can be.
    """
    data, clients = config.data, config.clients
    labels = (data.labels_per_client or DEFAULT_LABELS) if data.partition == "labels" else None
    return Case(
        fleet_shares(clients.capacities, clients.proportions),
        goal,
        budget,
        rounds,
        config.model.name,
        data.name,
        labels,
        data.partition,
    )


def write_capacity(capacity: float) -> str:
    """A capacity as a fraction, where it is one.

    Args:
        capacity: in (0, 1].

    >>> write_capacity(0.0625), write_capacity(1.0), write_capacity(0.3)
    ('1/16', '1', '3/10')
    """
    exact = Fraction(capacity).limit_denominator(1024)
    return str(exact) if float(exact) == capacity else f"{capacity:g}"
