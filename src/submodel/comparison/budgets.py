"""Budgets of comparisons, and the number of rounds that a budget buys, counted without training.

PyTorch is imported inside functions, because commands name their budgets without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from itertools import count
from typing import TYPE_CHECKING

from submodel.core.amounts import parse_amount, si
from submodel.core.errors import ConfigError

if TYPE_CHECKING:
    from submodel.algorithm.types import Setup, State
    from submodel.config import Config
    from submodel.model.cost import CostModel

_MOST_ROUNDS = 100_000  # guards against a mistyped amount


class BudgetKind(StrEnum):
    """Quantity of which all arms get the same amount."""

    ROUNDS = "rounds"
    BYTES = "bytes"
    FLOPS = "flops"


UNITS = {BudgetKind.BYTES: "B", BudgetKind.FLOPS: "FLOPs"}


def parse_budget(kind: BudgetKind, amount: str | None) -> int | None:
    """Parse the amount of a budget; None: the amount that the first arm needs.

    >>> parse_budget(BudgetKind.BYTES, "2GB"), parse_budget(BudgetKind.FLOPS, "1e12")
    (2000000000, 1000000000000)
    """
    if amount is None:
        return None
    if kind is BudgetKind.ROUNDS:
        raise ConfigError(
            "--amount: requires a budget of bytes or flops; train.rounds sets the rounds"
        )
    other = "flops" if kind is BudgetKind.BYTES else "b"
    if amount.strip().lower().rstrip("s").endswith(other.rstrip("s")):
        raise ConfigError(f"--amount: {amount!r} is not an amount of {kind.value}")
    return parse_amount(amount)


def round_cost(setup: Setup, state: State, costs: CostModel, kind: BudgetKind) -> int:
    """Count the bytes (down + up) or FLOPs of the round after ``state``, as a run counts them.

    A run that refuses an update counts less. FLOPs are counted only on request, because every
    shape of a sub-model must be built for them.
    """
    from submodel.algorithm.dispatch import cut_of, knowledge_of
    from submodel.algorithm.round_statistics import RoundStatistics
    from submodel.algorithm.rounds import plan
    from submodel.schemes.scheme import pass_cuts, sends_masks
    from submodel.tasks.training import batches

    masks, travel = sends_masks(setup.scheme), setup.travel
    statistics = RoundStatistics(setup.axes, state.tensors, costs, masks, travel=travel)
    now, names = knowledge_of(setup, state), travel.of_update(dict(setup.module.named_parameters()))
    upload_bytes = 0
    for assignment in plan(setup, state.round):
        client, size = assignment.client, setup.clients.size(assignment.client)
        classes = setup.clients.labels(client) if setup.absent_labels != "keep" else None
        cut = cut_of(setup, assignment, classes, now)
        if setup.scheme.adapts(state.round):
            statistics.record_gradients(cut, names, size)
        if kind is BudgetKind.BYTES:
            statistics.record_task(cut)
            upload_bytes += statistics.update_bytes(cut)
        else:
            work = setup.scheme.work(setup.work, assignment.capacity)
            lengths = [len(b) for b in batches(size, work, setup.seed, state.round, client)]
            rule = setup.scheme.step_rule(assignment.capacity)
            key = (setup.seed, state.round, client)
            planned_passes = (
                () if rule is None else rule.plan_passes(cut, lengths, setup.least, key)
            )
            passes = pass_cuts(rule, cut, planned_passes, setup.least)
            statistics.record_update(cut, sum(lengths), 0.0, passes)
    down, up, flops, _ = statistics.as_dict()["counts"]
    return int(down + up + upload_bytes if kind is BudgetKind.BYTES else flops)


def round_costs(setup: Setup, kind: BudgetKind) -> Iterator[int]:
    """Yield the cost of every round, without end, for the weights of the untrained model.

    An adaptive scheme adapts once, with its clients' real gradients. Its later masks are not known
    before the run, so its costs are an estimate; the statistics of the run are exact. The same
    holds for a scheme that ranks single weights of all layers, if clients lack labels.
    """
    from submodel.algorithm.adaptation import adapt_state
    from submodel.algorithm.execution import ALONE
    from submodel.algorithm.round_statistics import RoundStatistics
    from submodel.algorithm.rounds import initial_state, plan
    from submodel.engines.serial import SerialEngine
    from submodel.model.cost import CostModel

    costs = CostModel(setup.module, setup.clients.dataset.example)
    state = initial_state(setup)
    statistics = RoundStatistics(setup.axes, state.tensors, costs)
    state = adapt_state(setup, state, SerialEngine(setup), costs, plan(setup, 0), ALONE, statistics)
    for round_ in count():
        yield round_cost(setup, replace(state, round=round_), costs, kind)


def cost_of(setups: Setup | Sequence[Setup], kind: BudgetKind, rounds: int) -> int:
    """Count the cost of a number of rounds, for one run or the sum over several."""
    costs = _summed_costs(_several(setups), kind)
    return sum(cost for cost, _ in zip(costs, range(rounds), strict=False))


def _several(setups: Setup | Sequence[Setup]) -> Sequence[Setup]:
    return setups if isinstance(setups, Sequence) else [setups]


def _summed_costs(setups: Sequence[Setup], kind: BudgetKind) -> Iterator[int]:
    return map(sum, zip(*(round_costs(setup, kind) for setup in setups), strict=False))


def rounds_within(setups: Setup | Sequence[Setup], kind: BudgetKind, amount: int) -> int:
    """Count the whole rounds that an amount buys, the same number for each of several runs.

    Raises `ConfigError` if it buys none.
    """
    cost_so_far = 0
    schemes = [setup.scheme for setup in _several(setups)]
    for rounds_before, cost in enumerate(_summed_costs(_several(setups), kind)):
        if cost == 0:
            raise ConfigError(f"--budget: a round costs no {kind.value} that could be counted")
        if rounds_before == 0 and cost > amount:
            need, have = si(cost, UNITS[kind]), si(amount, UNITS[kind])
            raise ConfigError(f"--amount: one round takes {need}, more than {have}")
        if rounds_before == 0 and amount > cost * _MOST_ROUNDS:
            raise ConfigError(
                f"--amount: {si(amount, UNITS[kind])} buys more than {_MOST_ROUNDS:,} rounds "
                f"of {si(cost, UNITS[kind])}; give less"
            )
        cost_so_far += cost
        if cost_so_far > amount:
            rounds = rounds_before
            while rounds > 1 and not all(s.joins(rounds - 1) for s in schemes):
                rounds -= 1  # the work of cells after their last join would be lost
            return rounds
    raise AssertionError("round_costs has no end")


def with_rounds(config: Config, rounds: int) -> Config:
    """Change the number of rounds, with the milestones of the learning rate scaled alike.

    A cosine schedule scales by itself.

    >>> from submodel.config import Config
    >>> local = {"schedule": "step", "milestones": [80, 150]}
    >>> short = with_rounds(Config.model_validate({"local": local, "train": {"rounds": 200}}), 50)
    >>> short.train.rounds, short.local.milestones
    (50, [20, 38])
    """
    share = Fraction(rounds, config.train.rounds)
    local = config.local
    if former := getattr(local, "milestones", None):
        local = local.with_values(milestones=[max(1, round(m * share)) for m in former])
    return config.model_copy(
        update={"train": config.train.with_values(rounds=rounds), "local": local}
    )
