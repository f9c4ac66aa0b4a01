"""A rough estimate of computing times from shapes alone, without a clock, so it is repeatable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from submodel.algorithm.execution import Bundle
from submodel.algorithm.types import Assignment, Setup
from submodel.model.budget import activation_bytes
from submodel.model.build import tensors_of
from submodel.model.cost import BACKWARD, CostModel
from submodel.model.cut import Cut, count_values, prefix_cut
from submodel.model.travel import size_in_bytes
from submodel.schemes import Draw, Static
from submodel.schemes.draw import draw_coordinates
from submodel.tasks.training import batch_length, count_steps


@dataclass(frozen=True)
class StepCosts:
    """The cost of a step in seconds.

    Arithmetic dominates for large layers, kept bytes for small ones, and calls for tiny ones. The
    values are fitted to steps of a pre-activation ResNet18 on one core.
    """

    per_flop: float
    per_byte: float
    per_layer: float


TORCH_COSTS = StepCosts(1e-11, 1.5e-9, 1.8e-4)
"""Fitted to widths 1 to 64, single clients and stacks."""
NATIVE_COSTS = StepCosts(1.06e-11, 8.4e-11, 2.2e-5)
"""Fitted to widths 1 to 16, and to a small net of widths 2 to 32, with the kernels of
`submodel.engines.native`."""


class Estimate:
    """Estimates of seconds of one core for the clients of a setup."""

    def __init__(self, setup: Setup, costs: StepCosts = TORCH_COSTS) -> None:
        self._setup = setup
        self._step_costs = costs
        self.cut = lru_cache(maxsize=64)(self._cut)
        self._example = lru_cache(maxsize=64)(self._seconds_of_example)

    @cached_property
    def _costs(self) -> CostModel:
        return CostModel(self._setup.module, self._setup.clients.dataset.example)

    @cached_property
    def _overhead(self) -> float:
        layers = sum(not list(m.children()) for m in self._setup.module.modules())
        return layers * self._step_costs.per_layer

    def _cut(self, capacity: float) -> Cut:
        """A cut of this capacity; most schemes only draw cuts of its shape."""
        setup = self._setup
        if setup.granularity == "unit":
            return prefix_cut(setup.axes, capacity, least=setup.least)
        parameters = {n: p.detach() for n, p in setup.module.named_parameters()}
        return draw_coordinates(Static(), setup.axes, parameters, capacity, Draw(0, 0, 0))

    def _seconds_of_example(self, capacity: float) -> float:
        """The cost of one example in a step, without the cost of the step itself."""
        cut, costs = self.cut(capacity), self._costs
        flops = BACKWARD * costs.forward_flops(cut)
        small = costs.build(cut)
        kept_bytes = activation_bytes(small, costs.inputs) / costs.examples
        return flops * self._step_costs.per_flop + kept_bytes * self._step_costs.per_byte

    def steps(self, client: int) -> int:
        """The number of steps of a client in a round."""
        return count_steps(self._setup.clients.size(client), self._setup.work)

    def batch(self, client: int) -> int:
        """The number of examples in a client's largest batch."""
        return batch_length(self._setup.clients.size(client), self._setup.work)

    def bundle(self, assignments: Sequence[Assignment]) -> Bundle:
        """A bundle of assignments whose steps are computed together."""
        steps = [self.steps(a.client) for a in assignments]

        def work() -> float:
            return sum(
                n * self.batch(a.client) * self._example(a.capacity)
                for n, a in zip(steps, assignments, strict=True)
            )

        return Bundle(assignments, max(steps) * self._overhead, work)

    def seconds(self, rounds: int) -> float:
        """The time of rounds without stacks; the first client represents all."""
        population = self._setup.population
        fractions = population.proportions
        bundles = [self.bundle([Assignment(0, 0, c)]) for c in population.capacities]
        mean = sum(b.cost * s for b, s in zip(bundles, fractions, strict=True)) / sum(fractions)
        return rounds * population.per_round * mean


# Measured on two cores of one machine: models of 53 k and 1.4 M parameters, shared memory
_SECONDS_PER_ROUND = 2e-3  # two messages
_SECONDS_PER_BYTE = 1e-9  # of an update
_SECONDS_PER_SUM = 2.4e-7  # of a weight whose sums are sent over a socket, 24 bytes
_LEAST_WAITING = 1 << 24  # bytes of updates that wait for any model (see `Accumulator`)


def exchange_seconds(setup: Setup, rounds: int, processes: int) -> float:
    """The time that processes spend on exchange in these rounds."""
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
