"""How many rounds a budget buys: found by counting what rounds would cost, not by training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from fractions import Fraction
from itertools import count

from submodel.config import Config
from submodel.cost import CostModel
from submodel.errors import ConfigError
from submodel.exchange import Setup, State
from submodel.local import LocalWork
from submodel.rounds import cut_of, initial_state, known, plan
from submodel.tally import Tally
from submodel.units import parse_amount, si

_MOST_ROUNDS = 100_000  # that a slip of the keyboard may ask for


class BudgetKind(StrEnum):
    """What all ways get the same amount of."""

    ROUNDS = "rounds"
    BYTES = "bytes"
    FLOPS = "flops"


UNITS = {BudgetKind.BYTES: "B", BudgetKind.FLOPS: "FLOPs"}


def parse_budget(kind: BudgetKind, amount: str | None) -> int | None:
    """The amount of a budget; None: what the first way needs.

    >>> parse_budget(BudgetKind.BYTES, "2GB"), parse_budget(BudgetKind.FLOPS, "1e12")
    (2000000000, 1000000000000)
    """
    if amount is None:
        return None
    if kind is BudgetKind.ROUNDS:
        raise ConfigError(
            ["--amount: goes with a budget of bytes or flops; the rounds are train.rounds"]
        )
    other = "flops" if kind is BudgetKind.BYTES else "b"
    if amount.strip().lower().rstrip("s").endswith(other.rstrip("s")):
        raise ConfigError([f"--amount: {amount!r} is not an amount of {kind.value}"])
    return parse_amount(amount)


def examples_used(total: int, work: LocalWork) -> int:
    """How many examples a client with ``total`` of them uses in a round, repeated ones counted.

    >>> examples_used(25, LocalWork(lr=0.1, epochs=2, batch_size=10))
    50
    >>> examples_used(25, LocalWork(lr=0.1, epochs=None, steps=5, batch_size=10))  # 10+10+5+10+10
    45
    """
    if work.steps is None:
        return (work.epochs or 0) * total
    size = min(work.batch_size or total, total)
    passes, left = divmod(work.steps, -(-total // size))
    return passes * total + left * size  # a pass that is cut short lacks its small last batch


def round_cost(setup: Setup, state: State, costs: CostModel, kind: BudgetKind) -> int:
    """What the round after ``state`` costs: bytes (down + up) or FLOPs, as a run books them.

    Where a run refuses an update it books less. FLOPs are counted only where they are asked for:
    every shape of a sub-model has to be built for them.
    """
    tally = Tally(setup.axes, state.tensors, costs)
    now = known(setup, state)
    for assignment in plan(setup, state.round):
        client = assignment.client
        classes = setup.federation.labels(client) if setup.absent_labels != "keep" else None
        cut = cut_of(setup, assignment, classes, now)
        if kind is BudgetKind.BYTES:
            tally.send(cut)
        else:
            tally.accept(cut, examples_used(setup.federation.size(client), setup.work), 0.0)
    down, _, flops, _ = tally.books()["counts"]
    return int(2 * down if kind is BudgetKind.BYTES else flops)  # what goes down comes up


def round_costs(setup: Setup, kind: BudgetKind) -> Iterator[int]:
    """The cost of round after round, without end; the weights are those of the untrained model."""
    costs = CostModel(setup.module, setup.federation.dataset.example)
    state = initial_state(setup)
    for round_ in count():
        yield round_cost(setup, replace(state, round=round_), costs, kind)


def cost_of(setup: Setup, kind: BudgetKind, rounds: int) -> int:
    """What so many rounds cost."""
    return sum(cost for cost, _ in zip(round_costs(setup, kind), range(rounds), strict=False))


def rounds_within(setup: Setup, kind: BudgetKind, amount: int) -> int:
    """How many whole rounds an amount buys; raises `ConfigError` where it buys none."""
    spent = 0
    for rounds, cost in enumerate(round_costs(setup, kind)):
        if cost == 0:
            raise ConfigError([f"--budget: a round costs no {kind.value} that could be counted"])
        if rounds == 0 and cost > amount:
            need, have = si(cost, UNITS[kind]), si(amount, UNITS[kind])
            raise ConfigError([f"--amount: one round takes {need}, more than the {have} there are"])
        if rounds == 0 and amount > cost * _MOST_ROUNDS:
            raise ConfigError(
                [
                    f"--amount: {si(amount, UNITS[kind])} buys more than {_MOST_ROUNDS:,} rounds "
                    f"of {si(cost, UNITS[kind])}; give less"
                ]
            )
        spent += cost
        if spent > amount:
            return rounds
    raise AssertionError("round_costs has no end")


def with_rounds(config: Config, rounds: int) -> Config:
    """The configuration at another length, its learning rate decaying at the same share of it.

    A cosine follows the rounds by itself.

    >>> local = {"schedule": "step", "milestones": [80, 150]}
    >>> short = with_rounds(Config.model_validate({"local": local, "train": {"rounds": 200}}), 50)
    >>> short.train.rounds, short.local.milestones
    (50, [20, 38])
    """
    share = Fraction(rounds, config.train.rounds)
    milestones = [max(1, round(milestone * share)) for milestone in config.local.milestones]
    return config.model_copy(
        update={
            "train": config.train.model_copy(update={"rounds": rounds}),
            "local": config.local.model_copy(update={"milestones": milestones}),
        }
    )
