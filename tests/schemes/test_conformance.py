"""Every scheme of the package passes the checks for schemes; every kind of broken one fails.

Contract 4: rolling covers every unit equally often, Bernoulli frequencies match p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from submodel.core.errors import ConfigError
from submodel.core.randomness import generator
from submodel.schemes import (
    Adaptation,
    Draw,
    Full,
    LooksAtModel,
    Mask,
    Random,
    Rolling,
    RunFacts,
    Scheme,
    SchemeMemory,
    Static,
    default_windows,
    units_held,
    window_problems,
)  # fmt: skip
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.tasks.training import LocalWork
from submodel.testing import check_scheme

# ruff: noqa: ARG002 - schemes get more arguments than most of these use


Options = dict[str, Any]
THIRDS: Options = {"clients": {"capacities": ["1/3"]}}
ALONE: Options = {"clients": {"count": 1, "per_round": 1, "capacities": [0.5]}}
SETTINGS: dict[str, list[tuple[Options, Options]]] = {
    # keys of the scheme and options of the check; other schemes have defaults
    "full": [({}, {"budget": None})],
    "rolling": [({"windows": 8}, {})],
    "partition": [({"every": 2}, THIRDS)],
    "importance": [
        ({"granularity": "unit"}, {}),
        ({"granularity": "unit", "scope": "global"}, {"budget": "total"}),
        # all clients hold norms and biases beyond the share
        ({"granularity": "coordinate"}, {"budget": None}),
        ({"granularity": "coordinate", "scope": "axis"}, {"budget": None}),
    ],
    "masked-sgd": [({"sequence": "rolling"}, ALONE)],
    # a cell holds its part at any capacity, and a round equals FedAvg only with one cell
    "hierarchical": [
        ({"cells": 2, "every": 2}, {"whole": False, "clients": {"capacities": [0.5]}}),
        ({"cells": 1, "every": 1}, {"budget": None}),
    ],
    "pruned": [
        ({"every": 2}, {"clients": {"capacities": [0.5]}}),
        ({"every": 2, "reentry": "kept"}, {"clients": {"capacities": [0.5]}}),
    ],
}
CASES = [(name, *case) for name in SCHEMES.entries for case in SETTINGS.get(name, [({}, {})])]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "keys", "options"), CASES, ids=lambda v: str(v))
def test_the_schemes_of_the_package_keep_what_schemes_must(
    name: str, keys: Options, options: Options
) -> None:
    checked = check_scheme({"name": name, **keys}, **options)
    assert len(checked) == len(set(checked)) >= 8


class Good(Static):
    """A valid scheme, from which broken ones differ in one point."""


class Numbers(Good):
    """Return positions instead of a mask."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return np.flatnonzero(super().select(axis, size, capacity, draw))  # type: ignore[return-value]


class Listed(Good):
    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        positions: Any = super().select(axis, size, capacity, draw).tolist()
        return positions  # type: ignore[no-any-return]


class Short(Good):
    """Return only the held part of the mask."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return np.ones(units_held(capacity, size), dtype=np.bool_)


class Consuming(Scheme):
    """Draw from a stream, so the answer depends on the number of earlier calls."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        mask = np.zeros(size, dtype=np.bool_)
        mask[self._rng.choice(size, units_held(capacity, size), replace=False)] = True
        return mask


class FirstComeFirstServed(Scheme):
    """Clients hold the rest of earlier calls: by order, not by place."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], list[int]] = {}

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        seen = self._seen.setdefault((draw.round, axis), [])
        if draw.client not in seen:
            seen.append(draw.client)
        start = seen.index(draw.client)
        return np.roll(np.arange(size) < units_held(capacity, size), start)


class Greedy(Good):
    """Hold one unit too many."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return np.arange(size) < units_held(capacity, size) * 1.25


class GreedyByChance(Scheme):
    """Return masks of random size, a fifth too large on average."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return generator(draw.seed, "mask", draw.round, draw.client, axis).random(size) < (
            capacity * 1.2
        )


class Stingy(Good):
    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return super().select(axis, size, capacity, draw) & (capacity == 1)


class NeverWhole(Good):
    """The last unit is never held."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return super().select(axis, size, capacity, draw) & (np.arange(size) < size - 1)


class OtherWork(Good):
    """A client that holds everything does not train like FedAvg."""

    def work(self, work: LocalWork, capacity: float) -> LocalWork:
        return replace(work, lr=work.lr / 2)


class Meddling(Good, LooksAtModel):
    """Change its memory in a draw."""

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        return {"asked": torch.zeros(1)}

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        draw.knowledge.memory["asked"].add_(1)
        return super().select(axis, size, capacity, draw)


class Forgetful(Good):
    """Keep state in the object instead of the memory, so a resumed run starts anew."""

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "rounds", 0)

    rounds: int

    def adapts(self, round_: int) -> bool:
        return True

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        object.__setattr__(self, "rounds", self.rounds + 1)
        return {n: t * (1 - 0.01 * self.rounds) for n, t in now.tensors.items()}, now.memory


class Growing(Good):
    """Use memory that `begin` does not name."""

    def adapts(self, round_: int) -> bool:
        return True

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        return now.tensors, {**now.memory, f"round {now.round}": torch.zeros(1)}


class Stretching(Good):
    """Change the shape of its memory."""

    def begin(self, parameters: Mapping[str, Tensor]) -> SchemeMemory:
        return {"rounds": torch.zeros(0)}

    def adapts(self, round_: int) -> bool:
        return True

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        return now.tensors, {"rounds": torch.zeros(now.round + 1)}


class NoPass(Good):
    def output_passes(self) -> Sequence[Scheme]:
        return []


class NoScheme(Good):
    def output_passes(self) -> Sequence[Scheme]:
        return [object()]  # type: ignore[list-item]


class OtherOutput(Good):
    """Its output passes do not hold everything at capacity 1."""

    def output_passes(self) -> Sequence[Scheme]:
        return [NeverWhole()]


class LostClients(Good):
    """Name a cell that does not exist."""

    cells = 1

    def joins(self, round_: int) -> bool:
        return True

    def cell(self, client: int) -> int:
        return client


class Peeking(Good):
    """Depend on the model without declaring it."""

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        return draw.knowledge.magnitudes(axis) >= 0


class Hasty(Good):
    """Adapt without declaring it."""

    def adapt(self, now: Adaptation) -> tuple[Mapping[str, Tensor], SchemeMemory]:
        return now.tensors, now.memory


class Refusing(Good):
    def problems(self, run: RunFacts) -> list[str]:
        return [f"scheme.name: not defined for {run.clients} clients"]


class OnlyUnits(Good):
    def problems(self, run: RunFacts) -> list[str]:
        return ["scheme.granularity: unit"] if run.granularity == "coordinate" else []


BROKEN: dict[type[Scheme], str] = {
    Numbers: "mask .*int64.* bool",
    Listed: "a list .*NumPy",
    Short: r"mask .*\(2,\).* \(8,\)",
    Consuming: "axis '0' of 8 units, capacity 0.*: .*again",
    FirstComeFirstServed: "another scheme",
    Greedy: "capacity 0.25 .*3 .*axis '0' .*2",
    GreedyByChance: "capacity 0.5 .*4.707 .*axis '0' .*4",
    Stingy: "capacity 0.25 .*never .*axis '0'",
    NeverWhole: "capacity 1, round 0, client 1: 1 ",
    OtherWork: r"round \(selective\) .*capacity 1 .*FedAvg: 0.bias, 0.weight",
    Meddling: "select .*model .*memory",
    Forgetful: "resumed .*: 0.bias, 0.weight",
    Growing: "memory 'scheme/round 0' .*`begin`",
    Stretching: r"memory 'scheme/rounds' .*\(1,\)",
    NoPass: "no output pass",
    NoScheme: "output pass .*object, .*select",
    OtherOutput: "output step .*capacity 1 .*FedAvg: 0.weight ",
    LostClients: "client 1 .*cell 1 ",
    Peeking: "scheme Peeking: .*draw.knowledge.magnitudes",
    Hasty: "`adapt`, .*`adapts`",
    Refusing: "\nunit: scheme.name: not defined for 5 clients\ncoord",
}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", BROKEN)
def test_what_breaks_a_rule_is_found_and_told(scheme: type[Scheme]) -> None:
    with pytest.raises(AssertionError, match=BROKEN[scheme]):
        check_scheme(f"{__name__}:{scheme.__name__}")


@pytest.mark.slow
def test_the_one_they_differ_from_passes_and_a_refused_granularity_is_left_out() -> None:
    units = check_scheme(f"{__name__}:OnlyUnits")
    weights = check_scheme({"name": f"{__name__}:Good", "granularity": "coordinate"})
    assert len(units) == 8
    assert [what.replace("unit:", "coordinate:") for what in units] == weights


@pytest.mark.slow
def test_what_is_not_asked_for_is_not_checked() -> None:
    def check(name: str, **options: Any) -> list[str]:
        return check_scheme({"name": f"{__name__}:{name}", "granularity": "unit"}, **options)

    assert not any("contract 1" in what for what in check("NeverWhole", whole=False))
    assert "unit: every capacity holds units" in check("Greedy", budget=None, whole=False)
    with pytest.raises(AssertionError, match=r"axis 'all together' .*6"):
        check("Greedy", budget="total")


def test_a_scheme_that_there_is_not_is_a_mistake_in_the_configuration() -> None:
    with pytest.raises(ConfigError, match=r"^scheme\.name: 'statc'"):
        check_scheme("statc")


CAPACITIES = [1.0, 0.5, 0.25, 0.125, 1 / 16]


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    capacity=st.floats(0.01, 1),
    order=st.sampled_from(["shuffled", "sequential"]),
    epoch=st.integers(0, 3),
)
def test_rolling_covers_every_unit_equally_over_an_epoch(
    sizes: list[int], capacity: float, order: str, epoch: int
) -> None:
    axes = {str(i): size for i, size in enumerate(sizes)}
    windows = default_windows(axes)
    scheme = Rolling(windows, order)  # type: ignore[arg-type]
    for axis, size in axes.items():
        masks = [
            scheme.select(axis, size, capacity, Draw(7, epoch * windows + r, 0))
            for r in range(windows)
        ]
        assert set(np.sum(masks, axis=0).tolist()) == {units_held(capacity, size) * windows // size}


@pytest.mark.parametrize(("size", "windows"), [(64, 16), (1003, 16), (16, 16), (8, 16)])
def test_fewer_windows_than_units_still_cover_equally(size: int, windows: int) -> None:
    for capacity in CAPACITIES:
        masks = [
            Rolling(windows).select("a", size, capacity, Draw(0, r, 0)) for r in range(windows)
        ]
        assert len({int(count) for count in np.sum(masks, axis=0)}) == 1


def test_all_clients_share_the_windows_start_and_the_permutation() -> None:
    scheme = Rolling(8)
    for r in range(16):
        wide = scheme.select("a", 8, 0.5, Draw(0, r, 1))
        narrow = scheme.select("a", 8, 0.25, Draw(0, r, 2))
        assert not (narrow & ~wide).any()
        start = scheme.window(Draw(0, r, 3))
        assert wide[start]
        assert narrow[start]


def test_each_epoch_draws_its_own_permutation() -> None:
    def visits(epoch: int) -> list[int]:
        return [Rolling(64).window(Draw(0, epoch * 64 + r, 0)) for r in range(64)]

    assert sorted(visits(0)) == list(range(64))
    assert visits(0) != visits(1)
    assert [Rolling(4, "sequential").window(Draw(0, r, 0)) for r in range(6)] == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("p", [0.9, 0.5, 1 / 16])
def test_bernoulli_inclusion_frequencies_match_p(p: float) -> None:
    size, draws = 50, 2000
    total = sum(
        Random().select("a", size, p, Draw(0, r, 0)).astype(np.float64) for r in range(draws)
    )
    deviation = np.sqrt(p * (1 - p) / draws)
    # 5 standard deviations over 50 units; the draws are keyed, so the test is deterministic
    assert np.abs(total / draws - p).max() < 5 * deviation


def test_fixed_sampling_holds_exactly_the_share_and_varies() -> None:
    masks = [Random("fixed").select("a", 40, 0.25, Draw(0, r, 0)) for r in range(300)]
    assert {int(mask.sum()) for mask in masks} == {10}
    assert np.abs(np.mean(masks, axis=0) - 0.25).max() < 0.13


@given(capacity=st.floats(0.01, 1), smaller=st.floats(0.01, 1), size=st.integers(1, 99))
def test_static_cuts_nest(capacity: float, smaller: float, size: int) -> None:
    low, high = sorted((capacity, smaller))
    inner = Static().select("a", size, low, Draw(0, 0, 0))
    outer = Static().select("a", size, high, Draw(0, 0, 1))
    assert not (inner & ~outer).any()


def test_capacity_one_holds_everything_under_every_scheme() -> None:
    schemes = (Full(), Static(), Random(), Random("fixed"), Rolling(12), Rolling(4, "sequential"))
    for scheme in schemes:
        for r in range(12):
            assert scheme.select("a", 12, 1.0, Draw(3, r, 5)).all()


def test_draws_depend_on_seed_round_client_and_axis_and_on_nothing_else() -> None:
    def mask(seed: int, r: int, client: int, axis: str) -> bytes:
        return Random().select(axis, 64, 0.5, Draw(seed, r, client)).tobytes()

    assert mask(0, 1, 2, "a") == mask(0, 1, 2, "a")
    assert len({mask(*key) for key in [(0, 1, 2, "a"), (1, 1, 2, "a"), (0, 2, 2, "a"),
                                       (0, 1, 3, "a"), (0, 1, 2, "b")]}) == 5  # fmt: skip


def test_windows_that_cannot_cover_equally_are_refused_with_the_reason() -> None:
    assert " 32 units" in window_problems(64, {"a": 16, "b": 32}, [1])[0]
    assert "divide" in window_problems(12, {"a": 16, "b": 32}, [1])[0]
    assert "capacity 0.125" in window_problems(4, {"a": 16}, [0.5, 0.125])[0]
