"""A round: tasks are made as the engine asks for them, and its seconds are told by phase."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from submodel.algorithm.rounds import initial_state, output_step, step
from submodel.algorithm.types import Outcome, Setup, Task
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.schemes import Draw, Mask, Static
from tests.support.common import tiny_setup


class Watching(SerialEngine):
    """Notes how many tasks were made by the time that each update came back."""

    def __init__(self, setup: Setup, made: list[int]) -> None:
        super().__init__(setup)
        self.made, self.seen = made, list[int]()

    def bundles(self, assignments: Any) -> Any:
        """All clients in one bundle."""
        first, *others = super().bundles(assignments)
        every = [a for bundle in (first, *others) for a in bundle.assignments]
        return [type(first)(every)]

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:  # type: ignore[override]
        for outcome in super().run(tasks):
            self.seen.append(len(self.made))
            yield outcome


class Noting(Static):
    """Notes whom it drew for."""

    def __init__(self, drawn: list[int]) -> None:
        object.__setattr__(self, "drawn", drawn)

    drawn: list[int]

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        if draw.client not in self.drawn[-1:]:
            self.drawn.append(draw.client)
        return super().select(axis, size, capacity, draw)


def test_a_task_is_made_when_the_engine_asks_for_it() -> None:
    drawn: list[int] = []
    setup = tiny_setup("mlp", scheme={"name": "static"}, local={"steps": 1})
    setup = replace(setup, scheme=Noting(drawn))
    costs = CostModel(setup.module, setup.clients.dataset.example)
    engine = Watching(setup, drawn)
    state, _ = step(setup, initial_state(setup), engine, costs)
    assert engine.seen == [1, 2, 3, 4]
    drawn.clear()
    output_step(setup, state, engine, costs, 10.0)
    assert engine.seen == [1, 2, 3, 4] * 2


ALWAYS = {"plan", "gather", "train", "merge", "reduce"}
PHASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "plain": ({"name": "rolling"}, ALWAYS),
    "adapting": ({"name": "pruned", "granularity": "coordinate"}, {*ALWAYS, "adapt"}),
    "observing": ({"name": "masked-sgd"}, {*ALWAYS, "observe"}),
    "both": (
        {"name": "masked-sgd", "sequence": "pruned", "granularity": "coordinate"},
        {*ALWAYS, "adapt", "observe"},
    ),
}


@pytest.mark.parametrize("case", PHASES)
def test_seconds_are_told_by_phase(case: str) -> None:
    scheme, phases = PHASES[case]
    alone = {"count": 1, "per_round": 1, "capacities": [0.5]}
    setup = tiny_setup("mlp", scheme=scheme, clients=alone, local={"steps": 1})
    costs = CostModel(setup.module, setup.clients.dataset.example)
    _, report = step(setup, initial_state(setup), SerialEngine(setup), costs)
    assert report.seconds.keys() == phases
    assert all(seconds >= 0 for seconds in report.seconds.values())
