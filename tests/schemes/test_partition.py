"""Independent subnet training: disjoint parts, redrawn on time, covering everything if shares
allow.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.rounds import initial_state, output_step, plan, step
from submodel.algorithm.types import Setup, Update
from submodel.config import parse
from submodel.core.errors import ConfigError
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.schemes import Draw, PartitionScheme, RunFacts, units_held
from tests.support.common import tiny_images, tiny_setup
from tests.support.rounds import step_of
from tests.support.runs import whole_and_resumed


def divided(model: str = "cnn", share: object = "1/4", per_round: int = 4, **scheme: Any) -> Setup:
    clients = {"count": 6, "per_round": per_round, "capacities": [share]}
    return tiny_setup(model, scheme={"name": "partition", **scheme}, clients=clients)


@given(
    size=st.integers(1, 60),
    clients=st.integers(1, 12),
    part=st.floats(0.2, 1),
    draw=st.tuples(st.integers(0, 5), st.integers(0, 50)),
)
def test_places_of_a_round_share_no_unit_and_hold_their_share(
    size: int, clients: int, part: float, draw: tuple[int, int]
) -> None:
    for capacity in (1 / clients, part / clients):
        masks = [
            PartitionScheme().select("a", size, capacity, Draw(*draw, client=9 - k, place=k))
            for k in range(clients)
        ]
        counts = np.sum(masks, axis=0)
        assert counts.max() <= 1
        for mask in masks:
            assert size * capacity - 1 < mask.sum() <= units_held(capacity, size)
        if capacity == 1 / clients:  # every unit has a holder, whether or not they divide evenly
            assert counts.min() == 1


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "preresnet18"])
@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_every_weight_with_a_cut_axis_has_one_holder_at_most(model: str, granularity: str) -> None:
    setup = divided(model, "1/2", per_round=2, granularity=granularity)
    state = initial_state(setup)
    for r in range(3):
        counts = {name: torch.zeros_like(t) for name, t in state.tensors.items()}
        for assignment in plan(setup, r):
            cut = cut_of(setup, assignment)
            for name, count in counts.items():
                cut.add(name, count, 1.0)
        for name, count in counts.items():
            cut_axes = {
                axis
                for layout in setup.axes.layouts[name]
                for axis in layout.axes()
                if axis in setup.axes.cut_by_capacity
            }
            if granularity == "coordinate":
                assert (count == 1).all(), name  # the flat vector is divided without remainder
            elif cut_axes:
                assert count.max() == 1, name
                # between two cut axes a weight is held if one client has both its units
                assert count.sum() == count.numel() / len(cut_axes), name
            else:
                assert (count == 2).all(), name


def test_axes_are_dealt_by_permutations_of_their_own_shared_by_all_clients() -> None:
    scheme, size = PartitionScheme(), 64

    def deal(axis: str, seed: int, round_: int, client: int, place: int) -> bytes:
        return scheme.select(axis, size, 1 / 4, Draw(seed, round_, client, place)).tobytes()

    assert deal("a", 0, 3, 5, 1) == deal("a", 0, 3, 99, 1)  # for any client in the place
    others = {deal("b", 0, 3, 5, 1), deal("a", 1, 3, 5, 1), deal("a", 0, 4, 5, 1),
              deal("a", 0, 3, 5, 2)}  # fmt: skip
    assert len(others | {deal("a", 0, 3, 5, 1)}) == 5


@pytest.mark.parametrize("every", [1, 3])
def test_units_are_dealt_anew_every_so_many_rounds(every: int) -> None:
    setup = divided("mlp", every=every)
    masks = [setup.scheme.select("x", 64, 0.25, Draw(0, r, 0)).tobytes() for r in range(9)]
    assert [masks[r] == masks[r - 1] for r in range(1, 9)] == [r % every != 0 for r in range(1, 9)]


REFUSED: dict[str, dict[str, Any]] = {
    "clients.capacities: .* 0.5, 0.25.*1/2": {"capacities": [0.5, 0.25], "per_round": 2},
    "clients.capacities: 4 clients .*0.5 of axis a": {"capacities": [0.5], "per_round": 4},
    "clients.capacities: 0.1 .*8 units of axis a": {"capacities": [0.1], "per_round": 4},
    "clients.capacities: 9 clients .*0.25 of axis a.* 8 units.*clients.per_round .*8": {
        "capacities": [0.25],
        "per_round": 9,
    },
    "axes.least.a: 4 clients .*0.5 of axis a": {
        "capacities": [0.25],
        "per_round": 4,
        "least": {"a": 0.5},
    },
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_dealt_is_refused_with_what_would_work(reason: str) -> None:
    run: dict[str, Any] = {
        "sizes": {"a": 8, "b": 16},
        "clients": 20,
        "granularity": "unit",
        **REFUSED[reason],
    }
    problems = PartitionScheme().problems(RunFacts(**run))
    assert re.match(reason, problems[0])


def test_what_is_advised_is_accepted() -> None:
    for size, clients in ((8, 4), (1003, 4), (10, 3), (7, 7)):
        run = RunFacts({"a": size, "b": 2 * size}, [1 / clients], 20, clients, "unit")
        assert PartitionScheme().problems(run) == []


def test_a_run_that_cannot_be_dealt_does_not_start() -> None:
    with pytest.raises(ConfigError, match=r"^clients\.capacities: .*0\.25"):
        tiny_setup("mlp", scheme={"name": "partition"})
    with pytest.raises(ConfigError, match=r"4 clients .* 1 of axis .*clients\.per_round = 1"):
        tiny_setup("mlp", scheme={"name": "partition"}, clients={"capacities": [1]})
    with pytest.raises(ValueError, match=r"place 2: 0\.5 of axis a "):
        PartitionScheme().select("a", 8, 0.5, Draw(0, 0, 0, place=2))


def test_the_only_holder_of_a_weight_decides_it_under_selective() -> None:
    setup = divided("mlp", granularity="coordinate")
    state = initial_state(setup)
    made: dict[int, Update] = {}

    class Watched(SerialEngine):
        def run(self, tasks: Any) -> Any:
            for update in super().run(tasks):
                made[update.assignment.place] = update
                yield update

    new, report = step_of(setup, state, Watched(setup))
    assert report.weights_covered == 1
    for name, tensor in new.tensors.items():
        # masked, and every weight has one holder
        copied = sum(u.tensors[name] for u in made.values())
        torch.testing.assert_close(tensor, copied, rtol=0, atol=1e-7)  # one sum in float32


@pytest.mark.slow
def test_the_output_step_takes_everyone_and_the_engines_agree() -> None:
    setup = divided("mlp", "1/4")
    costs = CostModel(setup.module, setup.clients.dataset.example)
    ends = []
    for engine in (SerialEngine(setup), BatchedEngine(setup, always=True)):
        state = initial_state(setup)
        for _ in range(2):
            state, _ = step(setup, state, engine, costs)
        ends.append(output_step(setup, state, engine, costs, smoothness=10.0).tensors)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_resumed_run_is_the_same_run(tmp_path: Any) -> None:
    config = parse({
        "model": {"name": "mlp", "width": 16},
        "data": {"partition": "iid"},
        "clients": {"count": 6, "per_round": 4, "capacities": ["1/4"]},
        "scheme": {"name": "partition", "every": 2},
        "local": {"absent_labels": "keep"},
        "train": {"rounds": 5, "evaluate_every": 5, "checkpoint_every": 1},
    })  # fmt: skip
    ends = whole_and_resumed(tmp_path, config, {3}, tiny_images())
    (_, whole, _), (_, resumed, _) = ends
    torch.testing.assert_close(whole.tensors, resumed.tensors, rtol=0, atol=0)
