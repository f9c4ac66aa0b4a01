"""Optional members of schemes: defined in a class, by former names, by delegation, or not."""
# ruff: noqa: ARG002 - a scheme is given more than most of these look at

from __future__ import annotations

import copy
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Assignment
from submodel.engines.serial import SerialEngine
from submodel.errors import SubmodelError
from submodel.model.cost import CostModel
from submodel.model.cut import PlannedCut
from submodel.schemes import (
    Adaptation,
    BorrowsMasks,
    Draw,
    HasCells,
    HasMemory,
    LooksAtModel,
    Mask,
    Scheme,
    SchemeMemory,
    Static,
    problems_of,
    units_held,
)
from tests.support.common import tiny_images, tiny_setup

ALONE = {"count": 1, "per_round": 1, "capacities": [0.5]}


class Shifting(Scheme):
    """A window whose start is in the memory, and moves before every second round."""

    looks_at_model = True

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        start = int(draw.knowledge.memory["start"])
        return np.roll(np.arange(size) < units_held(capacity, size), start)

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        return {"start": torch.ones(1)}

    def adapts(self, round_: int) -> bool:
        return round_ % 2 == 0

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        return now.tensors, {"start": now.memory["start"] * 2}


class Formerly(Scheme, LooksAtModel, HasMemory):
    """The same, as earlier versions asked for it."""

    select, begin = Shifting.select, Shifting.begin
    adapts, adapt = Shifting.adapts, Shifting.adapt


class NamedFirst(LooksAtModel, HasMemory, Scheme):
    select, begin = Shifting.select, Shifting.begin
    adapts, adapt = Shifting.adapts, Shifting.adapt


class Delegating(Static):
    """Passes on what it lacks, so that the defaults of `Scheme` do not count."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return Shifting().select(axis, size, capacity, draw)

    def __getattr__(self, name: str) -> Any:
        return getattr(Shifting(), name)


def given() -> Any:
    """No class of its own at all."""
    one = Shifting()
    names = ("select", "looks_at_model", "begin", "adapts", "adapt")
    return SimpleNamespace(**{name: getattr(one, name) for name in names})


def train(scheme: Any) -> tuple[list[float], list[int], dict[str, Tensor]]:
    setup = tiny_setup("mlp", scheme={"name": scheme})
    costs = CostModel(setup.module, setup.clients.dataset.example)
    state, sent = initial_state(setup), []
    for _ in range(3):
        state, report = step(setup, state, SerialEngine(setup), costs)
        sent.append(report.bytes_down)
    return state.memory["scheme/start"].tolist(), sent, dict(state.tensors)


@pytest.mark.parametrize(
    "scheme",
    [Formerly(), NamedFirst(), Delegating(), given(), BorrowsMasks(Shifting()),
     BorrowsMasks(given())],
    ids=["former names", "named first", "delegating", "object", "borrowed", "borrowed object"],
)  # fmt: skip
def test_however_they_are_defined_a_run_has_them(scheme: Any) -> None:
    start, sent, tensors = train(Shifting())
    assert start == [4.0]  # doubled before the first round and the third
    others = train(scheme)
    assert others[:2] == (start, sent)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in others[2].items())


def test_what_is_not_defined_has_the_default() -> None:
    bare = SimpleNamespace(select=Static().select, period=3)
    setup = tiny_setup("mlp", scheme={"name": bare})
    assert copy.deepcopy(setup.scheme).period == 3  # type: ignore[attr-defined]
    state = initial_state(setup)
    costs = CostModel(setup.module, setup.clients.dataset.example)
    after, report = step(setup, state, SerialEngine(setup), costs)
    plain = tiny_setup("mlp", scheme={"name": "static"})
    expected, plain_report = step(plain, initial_state(plain), SerialEngine(plain), costs)
    assert all(torch.equal(tensor, after.tensors[n]) for n, tensor in expected.tensors.items())
    assert report.bytes_down == plain_report.bytes_down
    assert problems_of(bare, None) == []  # type: ignore[arg-type]


def test_cells_named_by_their_former_protocol_are_defined_whole() -> None:
    class Pairs(Static, HasCells):
        cells = 2

        def cell(self, client: int) -> int:
            return client % 2

    with pytest.raises(TypeError, match=r"abstract method '?joins"):
        Pairs()

    class Complete(Pairs):
        def joins(self, round_: int) -> bool:
            return round_ == 1

    setup = tiny_setup("mlp", scheme={"name": Complete()})
    state = initial_state(setup)
    assert state.memory["cells/weights"].tolist() == [0.0, 0.0]
    lacking = type("Lacking", (Static, HasCells), {"cell": Pairs.cell, "joins": Complete.joins})
    with pytest.raises(SubmodelError, match="Lacking: it defines `cell`, `joins`, but not `cells`"):
        tiny_setup("mlp", scheme={"name": lacking()})


def test_borrowed_masks_are_drawn_by_layer_too() -> None:
    """The cut of `random` whose layers draw independently is the borrower's."""
    chosen = {"sampling": "fixed", "alignment": "independent"}
    setups = [
        tiny_setup("preresnet18", tiny_images(), scheme={**name, **chosen}, clients=ALONE)
        for name in ({"name": "random"}, {"name": "masked-sgd", "sequence": "random"})
    ]
    cuts = [cut_of(setup, Assignment(0, 0, 0.5)) for setup in setups]
    assert isinstance(cuts[0], PlannedCut)
    assert cuts[0].same_key == cuts[1].same_key
