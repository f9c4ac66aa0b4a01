"""How long work takes, roughly and from shapes alone: never from a clock, so it is repeatable."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

from submodel.cost import BACKWARD, CostModel
from submodel.cut import Cut, draw_units
from submodel.rounds import Assignment, Bundle, Setup, cut_of
from submodel.schemes import Draw, Static

# of one core, as measured for training nets of 12 to 60 layers: a factor of two is near enough
_FLOPS_PER_SECOND = 5e10
_SECONDS_PER_LAYER = 1.3e-4  # that its operators cost in a step beside their arithmetic


class Estimate:
    """The time of one core for the clients of a setup."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self.cut = lru_cache(maxsize=64)(self._cut)
        self._flops = lru_cache(maxsize=64)(self._count_flops)

    @cached_property
    def _costs(self) -> CostModel:
        return CostModel(self._setup.module, self._setup.federation.dataset.example)

    @cached_property
    def _overhead(self) -> float:
        layers = sum(not list(m.children()) for m in self._setup.module.modules())
        return layers * _SECONDS_PER_LAYER

    def _cut(self, capacity: float) -> Cut:
        """A cut of this capacity: most schemes draw only such of its shape."""
        setup = self._setup
        if setup.granularity == "unit":
            return draw_units(Static(), setup.axes, capacity, Draw(0, 0, 0), least=setup.least)
        return cut_of(setup, Assignment(0, 0, capacity))

    def _count_flops(self, capacity: float) -> int:
        return BACKWARD * self._costs.forward_flops(self.cut(capacity))

    def steps(self, client: int) -> int:
        """How many steps a client takes in a round."""
        work, examples = self._setup.work, len(self._setup.federation.indices(client))
        batch = min(work.batch_size or examples, examples)
        return work.steps or (work.epochs or 0) * -(-examples // batch)

    def batch(self, client: int) -> int:
        """How many examples a client's largest batch has."""
        examples = len(self._setup.federation.indices(client))
        return min(self._setup.work.batch_size or examples, examples)

    def bundle(self, assignments: Sequence[Assignment]) -> Bundle:
        """Assignments that take their steps together."""
        steps = [self.steps(a.client) for a in assignments]
        flops = sum(
            n * self.batch(a.client) * self._flops(a.capacity)
            for n, a in zip(steps, assignments, strict=True)
        )
        return Bundle(assignments, max(steps) * self._overhead, flops / _FLOPS_PER_SECOND)

    def seconds(self, rounds: int) -> float:
        """So many rounds without stacks; the first client stands for all."""
        population = self._setup.population
        shares = population.proportions
        bundles = [self.bundle([Assignment(0, 0, c)]) for c in population.capacities]
        mean = sum(b.cost * s for b, s in zip(bundles, shares, strict=True)) / sum(shares)
        return rounds * population.per_round * mean
