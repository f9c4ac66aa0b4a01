"""What a budget is of, and how much."""

from __future__ import annotations

from enum import StrEnum

from submodel.amounts import parse_amount
from submodel.errors import ConfigError


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
