"""Cells of clients: their disjoint parts, their own averages, and the joins."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.rounds import Cells, begin_cells, initial_state
from submodel.algorithm.server import Plain
from submodel.algorithm.types import Assignment, Setup, State
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError
from submodel.data import dataset
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.serial import SerialEngine
from submodel.model.axes import CLASSES
from submodel.model.cut import UnitCut, gather
from submodel.runs import checkpoint
from submodel.schemes import Draw, Hierarchical, RunFacts
from tests.support.common import RULES, tiny_images, tiny_setup
from tests.support.rounds import step_of
from tests.support.runs import whole_and_resumed

Array = NDArray[np.float64]


def parts(scheme: Hierarchical, size: int, round_: int, axis: str = "a") -> Array:
    """Return the parts of all clients: clients x units."""
    clients = range(2 * scheme.cells)
    return np.array([scheme.select(axis, size, 1.0, Draw(7, round_, c)) for c in clients])


@pytest.mark.slow
@given(
    cells=st.integers(1, 6),
    size=st.integers(6, 40),
    every=st.integers(1, 4),
    period=st.integers(0, 3),
)
def test_parts_are_disjoint_complete_about_equal_and_constant_within_a_period(
    cells: int, size: int, every: int, period: int
) -> None:
    scheme = Hierarchical(cells, every)
    held = parts(scheme, size, period * every)
    for cell in range(cells):  # clients of a cell hold the same
        assert np.array_equal(held[cell], held[cell + cells])
        assert scheme.cell(cell) == scheme.cell(cell + cells) == cell
    assert (held[:cells].sum(0) == 1).all()
    assert set(held.sum(1)) <= {size // cells, -(-size // cells)}
    for r in range(every):
        assert np.array_equal(parts(scheme, size, period * every + r), held)
        assert scheme.joins(period * every + r) == (r == every - 1)


def test_every_period_and_every_axis_has_a_permutation_of_its_own() -> None:
    scheme = Hierarchical(2, every=3)
    first = parts(scheme, 40, 0)
    assert not np.array_equal(first, parts(scheme, 40, 3))
    assert not np.array_equal(first, parts(scheme, 40, 0, axis="b"))


# -- against a plain transcription --------------------------------------------------------------

INPUTS, UNITS, CLIENTS, EXAMPLES, STEPS, LR = 2, 5, 5, 6, 2, 0.05


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).square().mean() / 2


def two_layers(rule: str, per_round: int) -> Setup:
    """f(x) = v A x + b with five hidden units, of which two cells hold three and two."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(CLIENTS * EXAMPLES, INPUTS)), rng.normal(size=CLIENTS * EXAMPLES)
    data = dataset(*[(torch.from_numpy(x), torch.from_numpy(y))] * 2)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(INPUTS, UNITS, bias=False), nn.Linear(UNITS, 1)).double()
    config = parse(
        {
            "seed": 3,
            "data": {"partition": "iid"},
            "clients": {"count": CLIENTS, "per_round": per_round, "capacities": [1, 0.6]},
            "scheme": {"name": "hierarchical", "cells": 2, "every": 2},
            "merge": {"rule": rule},
            "local": {"steps": STEPS, "batch_size": 0, "lr": LR, "momentum": 0,
                      "absent_labels": "keep"},
        }
    )  # fmt: skip
    axes = {"0.weight": ("hidden",), "1.weight": (None, "hidden")}
    return prepare(config, net, data, axes=axes, loss=squared_error)


def plain(setup: Setup, rounds: int, rule: str) -> tuple[Array, Array, Array]:
    """Run hierarchical independent sub-model training, written without the package."""

    def descend(client: int, a: Array, v: Array, b: Array) -> tuple[Array, Array, Array]:
        own = setup.clients.examples(client)
        x, y = own.x.numpy(), own.y.numpy()
        for _ in range(STEPS):
            error = (x @ a.T @ v + b - y)[:, None]
            da, dv, db = v[:, None] * (error * x).mean(0), (error * (x @ a.T)).mean(0), error.mean()
            a, v, b = a - LR * da, v - LR * dv, b - LR * db
        return a, v, b

    a, (v,), (b,) = (p.detach().numpy().copy() for p in setup.module.parameters())
    for period in range(rounds // 2):
        units = [
            np.flatnonzero(setup.scheme.select("hidden", UNITS, 1.0, Draw(3, 2 * period, cell)))
            for cell in (0, 1)
        ]
        model = [(a[u], v[u], b) for u in units]
        took = [0, 0]
        for r in (2 * period, 2 * period + 1):
            new: list[list[tuple[Array, Array, Array]]] = [[], []]
            for client in setup.population.sample(r):
                new[client % 2].append(descend(client, *model[client % 2]))
            for cell in (0, 1):
                took[cell] += len(new[cell])
                if new[cell]:
                    mean = [np.mean([m[i] for m in new[cell]], axis=0) for i in range(3)]
                    model[cell] = (mean[0], mean[1], mean[2])
        shares = [t / sum(took) for t in took]
        a, v = a.copy(), v.copy()
        for cell, u in enumerate(units):
            share = shares[cell] if rule == "fill_in" else float(took[cell] > 0)
            a[u] += share * (model[cell][0] - a[u])
            v[u] += share * (model[cell][1] - v[u])
        b = shares[0] * model[0][2] + shares[1] * model[1][2]
    return a, v, b


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("per_round", [1, 3, 5])
def test_rounds_equal_a_plain_transcription(rule: str, per_round: int) -> None:
    setup = two_layers(rule, per_round)
    state = initial_state(setup)
    for r in range(6):
        before = state
        state, _ = step_of(setup, state)
        if not setup.scheme.joins(r):  # the global model waits
            assert all(torch.equal(before.tensors[n], t) for n, t in state.tensors.items())
    a, v, b = plain(setup, 6, rule)
    found = [t.numpy() for t in state.tensors.values()]
    np.testing.assert_allclose(found[0], a, rtol=0, atol=1e-12)  # float64, sums in another order
    np.testing.assert_allclose(found[1][0], v, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found[2], [b], rtol=0, atol=1e-12)
    if per_round == 1:  # a cell without an update occurred
        cells = [[c % 2 for r in (p, p + 1) for c in setup.population.sample(r)] for p in (0, 2, 4)]
        assert any(len(set(took)) == 1 for took in cells)


# -- the bookkeeping ------------------------------------------------------------------------------


def labelled(rule: str, weights: str = "uniform") -> Setup:
    return tiny_setup(
        "mlp",
        width=4,
        images=tiny_images(40, classes=4),
        clients={"capacities": [0.5]},
        scheme={"name": "hierarchical", "cells": 2, "every": 2},
        merge={"rule": rule, "weights": weights},
        local={"absent_labels": "leave_out", "steps": 2},
    )


def moved(
    cells: Cells, setup: Setup, cell: int, classes: list[int], by: float, weight: float
) -> None:
    """Add an update that moves everything that a client of ``cell`` with these labels holds."""
    cut = cut_of(setup, Assignment(0, cell, 0.5), np.array(classes))
    tensors = {n: t + by for n, t in gather(cut, cells.bases[cell]).items()}
    cells.accumulators[cell].add(cut, tensors, weight)


@pytest.mark.parametrize("rule", RULES)
def test_rows_of_absent_labels_are_averaged_over_those_who_held_them(rule: str) -> None:
    """Weights 1 and 2 in cell 0, 3 in cell 1, over two rounds; label 3 is absent."""
    setup = labelled(rule)
    state = State(0, {n: torch.zeros_like(t) for n, t in initial_state(setup).tensors.items()})
    state = begin_cells(setup, state)
    first = Cells(setup, state)
    moved(first, setup, 0, [0, 1], by=1.0, weight=1.0)
    waiting, covered, together = first.merge(lambda _: UnitCut(setup.axes, {}))
    assert not together
    assert not any(bool(c.any()) for c in covered.values())
    assert all(torch.equal(waiting.tensors[n], t) for n, t in state.tensors.items())
    second = Cells(setup, replace(waiting, round=1))
    moved(second, setup, 0, [0], by=1.0, weight=2.0)
    moved(second, setup, 1, [0, 2], by=6.0, weight=3.0)
    joined, covered, together = second.merge(lambda c: cut_of(setup, Assignment(1, c, 0.5)))
    assert together
    # cell 0: everything moved twice, but row 1 of the classifier only once; cell 1: by 6 in round 1
    bias = {"selective": [4.0, 1.0, 6.0, 0.0], "fill_in": [4.0, 0.5 / 3, 3.0, 0.0]}
    parts = {"selective": (2.0, 6.0), "fill_in": (1.0, 3.0)}
    assert joined.tensors["5.bias"].tolist() == pytest.approx(bias[rule], rel=1e-6)
    assert covered["5.bias"].tolist() == [True, True, True, False]
    for cell in (0, 1):
        units = cut_of(setup, Assignment(0, cell, 0.5)).units  # type: ignore[attr-defined]
        hidden = [a for a in units if a != CLASSES]
        assert len(hidden) == 2
        for axis, name in zip(sorted(hidden), ("1.bias", "3.bias"), strict=True):
            held = joined.tensors[name][torch.from_numpy(units[axis])]
            assert set(held.tolist()) == {parts[rule][cell]}


def test_a_cell_that_took_no_update_in_a_period_leaves_its_part() -> None:
    setup = labelled("selective")
    state = replace(initial_state(setup), round=1)
    cells = Cells(setup, state)
    moved(cells, setup, 1, [0, 1, 2, 3], by=1.0, weight=1.0)
    joined, covered, _ = cells.merge(lambda c: cut_of(setup, Assignment(1, c, 0.5)))
    changed = {n: joined.tensors[n] != t for n, t in state.tensors.items()}
    assert {n: int(c.sum()) for n, c in changed.items()} == {
        "1.weight": 2 * 64, "1.bias": 2, "3.weight": 4, "3.bias": 2, "5.weight": 8, "5.bias": 4
    }  # fmt: skip
    assert all(torch.equal(covered[n], c) for n, c in changed.items())


class Counting(Plain):
    """A server step that counts its calls."""

    def __init__(self) -> None:
        self.steps = 0

    def begin(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:  # noqa: ARG002
        return {"steps": torch.zeros(1)}

    def step(self, old: Any, merged: Any, covered: Any, memory: Any) -> Any:
        self.steps += 1
        tensors, _ = super().step(old, merged, covered, memory)
        return tensors, {"steps": memory["steps"] + 1}


def run(setup: Setup, rounds: int, engine: Any = None) -> State:
    state = initial_state(setup)
    for _ in range(rounds):
        state, _ = step_of(setup, state, engine or SerialEngine(setup))
    return state


@pytest.mark.slow
def test_the_server_steps_at_joins_only_and_cells_go_on_from_its_model() -> None:
    server = Counting()
    setup = replace(labelled("selective"), server=server)
    assert [int(run(setup, r).memory["server/steps"]) for r in (1, 2, 3, 4)] == [0, 1, 1, 2]
    state = run(setup, 2)
    for name, tensor in state.tensors.items():
        assert torch.equal(state.memory[f"cells/0/model/{name}"], tensor)
        assert torch.equal(state.memory[f"cells/1/model/{name}"], tensor)
    assert state.memory["cells/weights"].tolist() == [0, 0]
    assert run(setup, 3).memory["cells/weights"].tolist() == [2, 2]


def test_cells_are_weighted_by_examples_where_clients_are() -> None:
    setup = labelled("selective", weights="examples")
    sizes = [setup.clients.size(client) for client in range(4)]
    expected = [(sizes[c] + sizes[c + 2]) / 1024 for c in (0, 1)]
    assert run(setup, 1).memory["cells/weights"].tolist() == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("granularity", ["unit", "coordinate"])
def test_one_cell_is_plain_training(granularity: str) -> None:
    full_capacity: dict[str, Any] = {"clients": {"capacities": [1]}}
    one = {"name": "hierarchical", "cells": 1, "granularity": granularity}
    alone, full = (
        run(tiny_setup("cnn", scheme=scheme, **full_capacity), 2)
        for scheme in (one, {"name": "full"})
    )
    assert not alone.memory
    assert all(torch.equal(alone.tensors[n], t) for n, t in full.tensors.items())


def test_stacks_of_single_weights_compute_what_single_clients_do() -> None:
    scheme = {"name": "hierarchical", "cells": 3, "every": 2, "granularity": "coordinate"}
    setup = tiny_setup("cnn", clients={"count": 7, "per_round": 5, "capacities": [0.5]},
                       scheme=scheme)  # fmt: skip
    serial = run(setup, 4)
    stacked = run(setup, 4, BatchedEngine(setup, always=True))
    torch.testing.assert_close(stacked.tensors, serial.tensors, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_run_stopped_within_a_period_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    config = parse(
        {
            "model": {"name": "mlp", "width": 8},
            "clients": {"count": 8, "per_round": 3, "capacities": ["1/2"]},
            "scheme": {"name": "hierarchical", "cells": 2, "every": 3},
            "train": {"rounds": 6, "evaluate_every": 6},
        }
    )
    (whole, state, _), (broken, end, _) = whole_and_resumed(tmp_path, config, {1, 5})
    assert checkpoint.model_sha256(end.tensors) == checkpoint.model_sha256(state.tensors)
    assert checkpoint.model_sha256(end.memory) == checkpoint.model_sha256(state.memory)
    assert whole.memory_file.read_bytes() == broken.memory_file.read_bytes()


# -- refusals
# ---------------------------------------------------------------------------------------


GIVEN = RunFacts(sizes={"a": 10}, capacities=[0.5, 1.0], clients=4, per_round=4, granularity="unit")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cells", "change", "words"),
    [
        (5, {"capacities": [0.5]}, "^scheme.cells: 5 .*4 clients"),
        (3, {"sizes": {"a": 10, "b": 2}}, "3 cells .*2 units of axis b"),
        (3, {"capacities": [1.0, 0.3]}, "0.3 .*3 .*10 units of axis a, .*3 .*4"),
        (2, {"capacities": [1.0]}, "2 cells .*1/2"),
        (2, {"least": {"a": 0.6}}, "^axes.least: 0.6 of axis a "),
        (2, {"rounds": 12}, "^train.rounds: 12 .*5"),
        (2, {"output_step": True}, "^train.output_step: .*'hierarchical'"),
    ],
)  # fmt: skip
def test_what_is_not_defined_is_refused(cells: int, change: dict[str, Any], words: str) -> None:
    assert Hierarchical(2).problems(GIVEN) == []
    (problem,) = Hierarchical(cells).problems(replace(GIVEN, **change))
    assert re.search(words, problem)


def test_a_configuration_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match=r"^scheme\.cells: 5 .*4 clients"):
        tiny_setup("mlp", clients={"capacities": [0.5]},
                   scheme={"name": "hierarchical", "cells": 5})  # fmt: skip
