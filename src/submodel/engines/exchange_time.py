"""What putting the updates of several processes together takes, from shapes alone."""

from __future__ import annotations

from submodel.algorithm.types import Setup
from submodel.engines.estimate import Estimate
from submodel.model.build import tensors_of
from submodel.model.cut import count_values
from submodel.model.travel import size_in_bytes

# On two cores of one machine: models of 53 k and 1.4 M parameters, updates in memory that all see.
_SECONDS_PER_ROUND = 2e-3  # two messages
_SECONDS_PER_BYTE = 1e-9  # of an update
_SECONDS_PER_SUM = 2.4e-7  # of a weight whose sums travel over a socket, 24 bytes
_LEAST_WAITING = 1 << 24  # bytes of updates that wait in any model (see `WaitingUpdates`)


def exchange_seconds(setup: Setup, rounds: int, processes: int) -> float:
    """What so many rounds take longer than their share of the work.

    Args:
        setup: of the run.
        rounds: how many.
        processes: that share a round, on one machine.
    """
    whole = setup.travel.of_update(tensors_of(setup.module))
    population, cut = setup.population, Estimate(setup).cut
    counts = [count_values(cut(capacity), whole) for capacity in population.capacities]
    mean = sum(n * s for n, s in zip(counts, population.proportions, strict=True))
    held_bytes = 4 * population.per_round * mean / sum(population.proportions) / processes
    model_bytes = size_in_bytes(whole)
    if setup.granularity != "unit" or held_bytes > max(_LEAST_WAITING, model_bytes):
        each = _SECONDS_PER_SUM * sum(tensor.numel() for tensor in whole.values())
    else:
        each = _SECONDS_PER_BYTE * held_bytes
    return rounds * (_SECONDS_PER_ROUND + each)
