"""What a client does in a round, in numbers: how many steps, on which batches, at which rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from submodel.local.optimisers import Optimiser, Sgd
from submodel.local.schedule import Precision, StepRates
from submodel.randomness import generator


@dataclass(frozen=True)
class LocalWork:
    """How a client trains in one round. Exactly one of ``epochs`` and ``steps`` is given."""

    lr: float
    epochs: int | None = 1
    steps: int | None = None
    batch_size: int | None = None  # None: all examples at once
    drop_last: bool = False  # leave out a pass's last batch where it is smaller than the others
    optimiser: Optimiser = field(default_factory=Sgd)
    clip: float | None = None  # the largest norm of a gradient
    precision: Precision = "float32"
    pieces: int = 1  # in which a batch is computed, one after another: the same step, less memory
    rates: StepRates = field(default_factory=StepRates)  # of the steps of a round


def batch_length(total: int, work: LocalWork) -> int:
    """How many examples a client's batches have, but for the last of a pass."""
    return min(work.batch_size or total, total)


def batches_per_pass(total: int, work: LocalWork) -> int:
    """How many batches a pass over so many examples has: at least one.

    >>> work = LocalWork(lr=0.1, batch_size=3, drop_last=True)
    >>> [batches_per_pass(total, work) for total in (1, 2, 3, 7)]
    [1, 1, 1, 2]
    """
    size = batch_length(total, work)
    return total // size if work.drop_last else -(-total // size)


def count_steps(total: int, work: LocalWork) -> int:
    """How many steps a client of so many examples takes in a round.

    >>> count_steps(7, LocalWork(lr=0.1, epochs=2, batch_size=3))
    6
    """
    return work.steps or (work.epochs or 0) * batches_per_pass(total, work)


def batches(
    total: int, work: LocalWork, seed: int, round_: int, client: int
) -> Iterator[NDArray[np.int64]]:
    """The positions of every batch: pass after pass over the shuffled examples.

    >>> [len(b) for b in batches(7, LocalWork(lr=0.1, batch_size=3), 0, 0, 0)]
    [3, 3, 1]
    """
    size, step, epoch = batch_length(total, work), 0, 0
    stop = batches_per_pass(total, work) * size
    while work.steps is not None or epoch < (work.epochs or 0):
        order = generator(seed, "batches", round_, client, epoch).permutation(total)
        for start in range(0, stop, size):
            if step == work.steps:
                return
            yield order[start : start + size]
            step += 1
        epoch += 1
