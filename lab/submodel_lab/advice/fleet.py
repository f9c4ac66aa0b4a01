"""The question to `advise`, and the distance of recorded circumstances from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

from submodel.comparison import BudgetKind
from submodel.core import ConfigError, parse_capacity
from submodel.data import DEFAULT_LABELS
from submodel_lab.advice.evidence import Circumstances

if TYPE_CHECKING:
    from submodel.config import Config

CAPACITY_FACTOR = 2
"""Largest ratio of largest capacities, and of smallest capacities if the fleet's is larger."""
MEAN_DISTANCE = 0.2
"""Largest difference of mean capacities."""
LABEL_FACTOR = 2
"""Largest ratio of labels per client."""
ROUND_FACTOR = 3
"""Largest ratio of rounds."""
_CONVOLUTIONAL = ("cnn", "preresnet18", "preresnet34")


class Goal(StrEnum):
    """The models that should be good at the end."""

    FULL_MODEL = "full-model"
    DEVICES = "devices"


GOAL_MEASURES = {Goal.FULL_MODEL: "accuracy", Goal.DEVICES: "mean over sizes"}
"""The deciding measure of each goal."""


@dataclass(frozen=True)
class Case:
    """A question to `advise`: the fleet, the goal, and the known circumstances."""

    # (capacity, share of the devices), the largest capacity first
    fleet: Sequence[tuple[float, float]]
    goal: Goal
    # scarce resource; None: runs continue until they are flat
    budget: BudgetKind | None = None
    rounds: int | None = None  # number of rounds; None: unknown or unlimited
    model: str | None = None  # name of the model; None: not given
    data: str | None = None  # name of the dataset; None: not given
    # labels of a client; None: not given, or data is not split by labels
    labels: int | None = None
    split: str | None = None  # partition of the data; None: not given

    @property
    def smallest(self) -> float:
        """Smallest capacity of the fleet."""
        return min(capacity for capacity, _ in self.fleet)


def fleet_shares(
    capacities: Sequence[float], proportions: Sequence[float] | None
) -> list[tuple[float, float]]:
    """Merge equal capacities to pairs (capacity, share of the clients), the largest first.

    >>> fleet_shares([0.25, 1.0, 0.25], None)
    [(1.0, 0.3333), (0.25, 0.6667)]
    """
    weights = proportions or [1.0] * len(capacities)
    shares: dict[float, float] = {}
    for capacity, weight in zip(capacities, weights, strict=True):
        shares[capacity] = shares.get(capacity, 0.0) + weight / sum(weights)
    return [(c, float(f"{shares[c]:.4g}")) for c in sorted(shares, reverse=True)]


def parse_fleet(text: str) -> list[tuple[float, float]]:
    """Parse capacities with optional shares, which need not sum to one.

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
            raise ConfigError(f"--fleet: {part.strip()!r} is not CAPACITY:SHARE, such as 1/4:0.8")
        try:
            capacities.append(parse_capacity(capacity))
        except ConfigError as error:
            raise ConfigError([f"--fleet: {problem}" for problem in error.problems]) from None
        shares.append(value)
    if len({":" in part for part in text.split(",")}) == 2:
        raise ConfigError("--fleet: give a share to every capacity, or to none")
    return fleet_shares(capacities, shares)


def case_of(config: Config, goal: Goal, budget: BudgetKind | None, rounds: int | None) -> Case:
    """Make the question for a configuration."""
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
    """Format a capacity as a fraction if it is one with a denominator up to 1024.

    >>> write_capacity(0.0625), write_capacity(1.0), write_capacity(0.3)
    ('1/16', '1', '3/10')
    """
    exact = Fraction(capacity).limit_denominator(1024)
    return str(exact) if float(exact) == capacity else f"{capacity:g}"


@dataclass(frozen=True)
class Nearness:
    """Distance of recorded circumstances from a question, and their differences."""

    distance: float  # of the capacities; 0: equal
    obstacles: Sequence[str]  # differences that are too large for the result to apply
    remarks: Sequence[str]  # smaller differences

    @property
    def is_near(self) -> bool:
        """Whether results from these circumstances apply to the fleet."""
        return not self.obstacles


def nearness_of(case: Case, there: Circumstances) -> Nearness:
    """Compare a question with the circumstances of a measurement.

    >>> from submodel_lab.advice.fleet import Goal
    >>> mixture = [(1.0, 0.5), (0.25, 0.5)]
    >>> there = Circumstances("a", "cifar10", "cnn", 5, mixture, (1100, 1100), True, "rounds")
    >>> nearness_of(Case([(1.0, 0.2), (1 / 64, 0.8)], Goal.DEVICES), there).obstacles
    ['smallest capacity 1/4 there, 1/64 here', 'mean capacity 0.62 there, 0.21 here']
    """
    distance, obstacles = _compare_capacities(case.fleet, there.capacities)
    budget_obstacles = _compare_budgets(case, there)
    remarks: list[str] = []
    if case.model is not None and case.model != there.model:
        both = {case.model, there.model}
        text = f"model {there.model} there, {case.model} here"
        (remarks if both <= set(_CONVOLUTIONAL) else obstacles).append(text)
    if case.data is not None and case.data != there.data:
        remarks.append(f"data {there.data} there, {case.data} here")
    if case.labels is not None and there.labels is not None:
        if _factor(case.labels, there.labels) > LABEL_FACTOR:
            obstacles.append(f"{there.labels} labels a client there, {case.labels} here")
    elif case.split is not None and there.labels is not None:
        remarks.append(f"{there.labels} labels a client there, split by {case.split!r} here")
    return Nearness(distance, [*obstacles, *budget_obstacles], remarks)


def _compare_capacities(
    here: Sequence[tuple[float, float]], there: Sequence[tuple[float, float]]
) -> tuple[float, list[str]]:
    obstacles, distance = [], 0.0
    for name, choose in (("smallest", min), ("largest", max)):
        first, second = (choose(c for c, _ in pairs) for pairs in (there, here))
        distance += abs(math.log2(first / second))
        is_beyond = name == "smallest" and second < first
        if is_beyond or _factor(first, second) > CAPACITY_FACTOR:
            obstacles.append(
                f"{name} capacity {write_capacity(first)} there, {write_capacity(second)} here"
            )
    means = [mean_capacity(pairs) for pairs in (there, here)]
    if round(abs(means[0] - means[1]), 2) > MEAN_DISTANCE:  # shares are recorded as rounded
        obstacles.append(f"mean capacity {means[0]:.2f} there, {means[1]:.2f} here")
    return distance + abs(means[0] - means[1]), obstacles


def mean_capacity(fleet: Sequence[tuple[float, float]]) -> float:
    """Mean capacity over devices."""
    return sum(c * share for c, share in fleet) / sum(share for _, share in fleet)


def _factor(first: float, second: float) -> float:
    return max(first / second, second / first)


def _compare_budgets(case: Case, there: Circumstances) -> list[str]:
    """List differences between the budget in question and the equal budgets of a comparison."""
    if case.budget is not None and case.budget.value != there.budget:
        return [f"equal {there.budget} there, a budget of {case.budget.value} here"]
    low, high = there.rounds
    if case.rounds is None:
        if case.budget is None and not there.is_converged:
            return [f"{high} rounds there, as many as it takes here"]
        return []
    if there.is_converged and case.rounds >= low:
        return []
    if case.rounds * ROUND_FACTOR < low or case.rounds > high * ROUND_FACTOR:
        rounds = f"{low}" if low == high else f"{low} to {high}"
        return [f"{rounds} rounds there, {case.rounds} here"]
    return []
