"""What a user may say of fitting a sub-model, and the plan that follows for one capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from submodel.data import Population
from submodel.errors import ConfigError

CutChoice = Literal["search", "importance", "prefix", "scheme"]
"""Which units a fitted sub-model begins with."""
_ONE_IN = 4  # rounds of the run that a fit takes, unless it is told


@dataclass(frozen=True)
class FitPlan:
    """What a fit will do; one of the same plan goes on where it stopped.

    Args:
        capacity: of the sub-model.
        rounds: over the clients who can hold it.
        lr: the clients' learning rate.
        cut: which units it begins with.
        model_sha256: of the global model that it is cut from.
    """

    capacity: float
    rounds: int
    lr: float
    cut: CutChoice
    model_sha256: str


def plan_fit(
    capacity: float,
    population: Population,
    run: tuple[int, float, str],
    rounds: int | None,
    lr: float | None,
    cut: str,
) -> FitPlan:
    """The plan for a capacity; raises `ConfigError` with all that is wrong.

    Args:
        capacity: of the sub-model.
        population: the clients of the run.
        run: the rounds it had, its learning rate, the hash of its model.
        rounds: as given; None: a quarter of the run's.
        lr: as given; None: the run's.
        cut: as given.
    """
    rounds_behind, run_lr, model_sha256 = run
    largest = max(population.capacities)
    problems = []
    if capacity == 1:
        problems.append("capacity: 1 is the global model, which is trained already")
    elif capacity > largest:
        problems.append(f"capacity: nobody can hold {capacity:g}; the largest is {largest:g}")
    if rounds is not None and (isinstance(rounds, bool) or rounds < 1):
        problems.append(f"rounds: {rounds!r} is not a number of rounds, 1 or more")
    if lr is not None and not 0 < lr < float("inf"):
        problems.append(f"lr: {lr!r} is not a positive number")
    choice = next((c for c in get_args(CutChoice) if c == cut), None)
    if choice is None:
        problems.append(f"cut: {cut!r} is none of {', '.join(get_args(CutChoice))}")
    if problems or choice is None:
        raise ConfigError(problems)
    rounds = -(-rounds_behind // _ONE_IN) if rounds is None else rounds
    return FitPlan(capacity, rounds, run_lr if lr is None else float(lr), choice, model_sha256)
