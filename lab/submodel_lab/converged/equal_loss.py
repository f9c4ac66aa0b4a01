"""Gaps of two runs where both had the same train loss: slower training alone is no smaller gap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from submodel.experiments import MEASURES, Line, VariantRecord


def differences_at_equal_loss(
    better: VariantRecord, worse: VariantRecord, measure: str
) -> list[float]:
    """By how much a gap of one is smaller than the other's where train losses are equal, by seed.

    The loss is the lowest that both reached; each is read where it first got there, between two
    evaluations by proportion.

    Args:
        better: what is claimed to have the smaller gap.
        worse: what it is compared with.
        measure: a gap.
    """
    others = {run.seed: run.lines for run in worse.runs}
    differences = []
    for run in better.runs:
        if run.seed in others:
            pair = run.lines, others[run.seed]
            loss = max(min(line["train_eval_loss"] for line in lines) for lines in pair)
            first, second = (value_at_loss(lines, loss, measure) for lines in pair)
            differences.append(second - first)
    return differences


def value_at_loss(lines: Sequence[Line], loss: float, measure: str) -> float:
    """A measure of a run where its train loss first came down to a value.

    Args:
        lines: its evaluations.
        loss: a train loss that it reached.
        measure: one of `MEASURES`.

    >>> losses, tests = (1.0, 0.5, 0.7), (1.0, 0.75, 0.9)
    >>> lines = [{"train_eval_loss": a, "test_loss": b} for a, b in zip(losses, tests)]
    >>> value_at_loss(lines, 0.75, "loss gap")
    0.125
    """
    values = [MEASURES[measure](line) for line in lines]
    losses = [line["train_eval_loss"] for line in lines]
    place = next(i for i, value in enumerate(losses) if value <= loss)
    if place == 0:
        return values[0]
    ends = losses[place], losses[place - 1]  # rising, as interpolation wants it
    return float(np.interp(loss, ends, (values[place], values[place - 1])))
