"""Checks of the contracts of schemes, including user-defined ones, in a small run.

The run has a small convolutional net with a flatten, forty images and five clients.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.evaluation import EVALUATOR
from submodel.algorithm.execution import Bundle
from submodel.algorithm.merge import Accumulator, merge_rule
from submodel.algorithm.rounds import initial_state, output_step, plan, step
from submodel.algorithm.types import Assignment, Setup, State
from submodel.config import Config, parse
from submodel.config.model_facts import ModelFacts
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError, SubmodelError
from submodel.core.randomness import seeded
from submodel.data import Dataset, dataset
from submodel.engines.serial import SerialEngine
from submodel.model.axes import Axes, trace
from submodel.model.cost import CostModel
from submodel.model.cut import gather
from submodel.runs import checkpoint
from submodel.schemes import Draw, Mask, Scheme, units_held
from submodel.schemes.draw import mask_problem, question
from submodel.schemes.scheme import output_passes

__all__ = ["check_scheme"]

BudgetScope = Literal["axis", "total"]
_LIMITS: dict[BudgetScope, str] = {"axis": "axis by axis", "total": "in total"}
_ROUNDS = 4  # rounds of the small run
_DRAWN_ROUNDS = 50
_DEVIATIONS = 5  # tolerance of a mean size in standard deviations, for masks of random sizes
_SMOOTHNESS = 20.0
_RULES = ("selective", "fill_in")  # merge rules for any model
_SECTIONS: dict[str, dict[str, Any]] = {
    "clients": {"count": 5, "per_round": 3, "capacities": [1, 0.5, 0.25]},
    "data": {"partition": "iid"},
    "local": {"steps": 2, "batch_size": 3, "lr": 0.05, "absent_labels": "keep"},
}


def check_scheme(
    scheme: Any,
    *,
    budget: BudgetScope | None = "axis",
    whole: bool = True,
    **sections: Mapping[str, Any],
) -> list[str]:
    """Check a scheme on a small net with the serial engine; return the list of passed checks.

    ``scheme`` is the section ``scheme`` of a configuration: a name, a table of keys, or the class
    or object itself. Other sections (``clients``, ``merge``, ...) change the small run of five
    clients, three per round, of capacities 1, 1/2 and 1/4. Unless a granularity is given, both are
    tried; one that the scheme refuses is skipped.

    ``budget`` sets the bound that a capacity is checked against: its fraction of every axis, on
    average; the sum over all axes; or None, no bound. ``whole`` requires that a client of capacity
    1 holds everything and trains as in FedAvg.

    Raises AssertionError with the reason if the scheme violates a contract.

    >>> check_scheme({"name": "static", "granularity": "unit"})[:2]
    ['unit: masks have the right form', 'unit: a draw depends on its arguments alone']
    """
    choice = dict(scheme) if isinstance(scheme, Mapping) else {"name": scheme}
    granularities = [choice["granularity"]] if "granularity" in choice else ["unit", "coordinate"]
    passed: list[str] = []
    refusals: list[str] = []
    for granularity in granularities:
        bench = _Bench({**choice, "granularity": granularity}, sections, budget)
        bench.config()  # raises for a misspelt key, which is not a refusal
        try:
            bench.setup  # noqa: B018 - made on the first access
        except ConfigError as error:
            refusals.append(f"{granularity}: {error}")
            continue
        except SubmodelError as error:  # the scheme fails before a run
            raise AssertionError(f"{granularity}: {error}") from error
        for check in (*_CHECKS, _check_whole) if whole else _CHECKS:
            passed += [f"{granularity}: {text}" for text in check(bench)]
    _require(bool(passed), "\n".join(["the scheme refuses the run", *refusals]))
    return passed


@cache
def _net() -> nn.Module:
    with seeded(0):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8),
        )  # fmt: skip


@cache
def _data() -> Dataset:
    y = torch.arange(40) % 8
    x = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(0)) + y.view(-1, 1, 1, 1)
    return dataset((x, y), (x[:8], y[:8]))


@cache
def _axes() -> Axes:
    return trace(_net(), _data().example)


@lru_cache(maxsize=4)
def _costs_of(module: nn.Module) -> CostModel:

    return CostModel(module, _data().example)


class _OneByOne(SerialEngine):
    """Serial engine that trains the clients of a round in either order, one per bundle."""

    def __init__(self, setup: Setup, backwards: bool = False) -> None:
        super().__init__(setup)
        self._step = -1 if backwards else 1

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """Make a bundle for every client."""
        return [Bundle([assignment]) for assignment in assignments[:: self._step]]


@dataclass(frozen=True)
class _Bench:
    """The small run; every fresh scheme gets a setup of its own."""

    choice: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]
    budget: BudgetScope | None
    facts: dict[str, ModelFacts] = field(default_factory=dict, init=False)  # by changed sections

    def config(self, **changes: Mapping[str, Any]) -> Config:
        """Make the configuration, with some sections changed."""
        tables: dict[str, Any] = {"scheme": self.choice}
        for table in (_SECTIONS, self.sections, changes):
            for name, section in table.items():
                tables[name] = {**tables.get(name, {}), **section}
        return parse(tables)

    def fresh(self, **changes: Mapping[str, Any]) -> Setup:
        """Make a setup with a fresh scheme; model and sub-models are tried only the first time."""
        config = self.config(**changes)
        has_ranks = config.model.factorised or config.model.adapters is not None
        axes = None if has_ranks else _axes()
        key = json.dumps(changes, sort_keys=True, default=str)
        setup = prepare(config, _net(), _data(), axes, facts=self.facts.get(key))
        self.facts[key] = ModelFacts(setup.axes, selects_logits=False, is_empty=False)
        return setup

    @cached_property
    def setup(self) -> Setup:
        """Setup of the scheme under test."""
        return self.fresh()

    @cached_property
    def engine(self) -> _OneByOne:
        """Engine of all setups of the bench, which differ only in their schemes."""
        return _OneByOne(self.setup)

    @cached_property
    def backwards(self) -> _OneByOne:
        """Engine that trains the clients in the opposite order."""
        return _OneByOne(self.setup, backwards=True)

    @property
    def scheme(self) -> Scheme:
        """Scheme under test."""
        return self.setup.scheme

    @cached_property
    def later(self) -> State:
        """State after some rounds, when an adaptive scheme has adapted."""
        return _run_bench(self.fresh(), self.engine)

    @cached_property
    def whole(self) -> dict[str, Any] | None:
        """Section of clients for a run at capacity 1, if the scheme supports one."""
        for clients in ({"capacities": [1]}, {"capacities": [1], "per_round": 1}):
            try:
                self.fresh(clients={**clients, "proportions": None})
            except ConfigError:
                continue
            return {**clients, "proportions": None}
        return None


def _run_bench(
    setup: Setup, engine: _OneByOne, rounds: int = _ROUNDS, memory: bool = True
) -> State:
    """Run some rounds from the start; ``memory`` keeps the memory of scheme and server."""
    state = initial_state(setup)
    for _ in range(rounds):
        state, _ = step(setup, state, engine, _costs_of(setup.module))
    return state if memory else replace(state, memory={})


def _bits(state: State) -> dict[str, bytes]:

    parts: dict[str, Tensor] = {
        **state.tensors,
        **{f"memory {n}": t for n, t in state.memory.items()},
    }
    return {name: tensor.detach().numpy().tobytes() for name, tensor in parts.items()}


def _require_same(one: State, two: State, reason: str) -> None:
    bits_of_one, bits_of_two = _bits(one), _bits(two)
    names = sorted(bits_of_one.keys() | bits_of_two.keys())
    differ = [name for name in names if bits_of_one.get(name) != bits_of_two.get(name)]
    _require(not differ, f"{reason}: {', '.join(differ)}")


def _require(condition: bool, reason: str) -> None:
    """Assert a condition, also in optimised code."""
    if not condition:
        raise AssertionError(reason)


def _queries(setup: Setup, state: State) -> Iterator[tuple[str, int, float, Draw]]:
    """Yield the arguments of ``select`` in a run: for its clients and for evaluation."""
    model = knowledge_of(setup, state)
    for round_ in (0, 1, 5, 17):
        assignments = [
            *plan(setup, round_),
            *(Assignment(round_, EVALUATOR, c) for c in setup.population.capacities),
        ]
        for a in assignments:
            for axis, size in setup.sizes.items():
                yield axis, size, a.capacity, Draw(setup.seed, round_, a.client, a.place, model)


def _form(bench: _Bench) -> list[str]:
    """Check the form of masks, output passes and cells."""
    state = initial_state(bench.setup)
    for scheme in (bench.scheme, *_passes(bench)):
        for query in _queries(replace(bench.setup, scheme=scheme), state):
            problem = mask_problem(scheme.select(*query), query[1])
            _require(problem is None, f"{question(*query)}: {problem}")
    count = bench.scheme.cells
    _require(count >= 1, f"there are {count} cells; there must be at least one")
    for client in range(bench.setup.population.count):
        cell = bench.scheme.cell(client)
        _require(0 <= cell < count, f"client {client} is in cell {cell} of {count}")
    return ["masks have the right form"]


def _purity(bench: _Bench) -> list[str]:
    """Check that a draw depends on its arguments alone, not on earlier draws or the instance."""
    state = bench.later
    before = _bits(state)

    def answers(scheme: Scheme, backwards: bool) -> list[Mask]:
        queries = list(_queries(bench.setup, state))
        masks = [scheme.select(*q).copy() for q in (queries[::-1] if backwards else queries)]
        return masks[::-1] if backwards else masks

    first = answers(bench.scheme, backwards=False)
    others = {
        "it is drawn again": answers(bench.scheme, backwards=False),
        "masks are drawn in another order": answers(bench.scheme, backwards=True),
        "another scheme of the same settings draws it": answers(bench.fresh().scheme, True),
    }
    for how, masks in others.items():
        every = _queries(bench.setup, state)
        for query, one, two in zip(every, first, masks, strict=True):
            if not np.array_equal(one, two):
                raise AssertionError(f"{question(*query)}: the mask differs when {how}")
    _require(_bits(state) == before, "select changed the model or the memory")
    return ["a draw depends on its arguments alone"]


def _sizes(bench: _Bench) -> list[str]:
    """Check the average number of units that a capacity holds."""
    setup, population = bench.setup, bench.setup.population
    model = knowledge_of(setup, bench.later)
    places = [(r, k, c) for r in range(_DRAWN_ROUNDS) for k, c in enumerate(population.sample(r))]
    for capacity in sorted(set(population.capacities)):
        statistics: dict[str, tuple[float, int, float]] = {}  # mean, share, variance of the mean
        for axis, size in setup.sizes.items():
            masks = [
                bench.scheme.select(axis, size, capacity, Draw(setup.seed, r, c, k, model))
                for r, k, c in places
            ]
            mean = float(np.mean([mask.sum() for mask in masks]))
            _require(mean > 0, f"capacity {capacity:g} never holds a unit of axis {axis!r}")
            variance = size * capacity * (1 - capacity) / len(places)
            statistics[axis] = mean, units_held(capacity, size), variance
        if bench.budget == "total":
            mean, share, variance = (
                sum(column) for column in zip(*statistics.values(), strict=True)
            )
            statistics = {"all together": (mean, int(share), variance)}
        for axis, (mean, share, variance) in statistics.items() if bench.budget is not None else ():
            _require(
                mean <= share + _DEVIATIONS * math.sqrt(variance),
                f"capacity {capacity:g} holds {mean:.4g} units of axis {axis!r} on average; "
                f"its share is {share}",
            )
    if bench.budget is None:
        return ["every capacity holds units"]
    return [f"sizes are within the capacity, {_LIMITS[bench.budget]}"]


def _round_trip(bench: _Bench) -> list[str]:
    """Check contract 2: merging untouched sub-models changes nothing, under either rule."""
    setup = bench.setup
    state = initial_state(setup)
    whole_tensors = setup.travel.of_update(state.tensors)
    for rule in _RULES:
        accumulator = Accumulator(whole_tensors, merge_rule(rule))
        for assignment in plan(setup, 1):
            cut = cut_of(setup, assignment, knowledge=knowledge_of(setup, state))
            tensors = gather(cut, whole_tensors)
            reason = accumulator.refusal(cut, tensors)
            _require(reason is None, f"client {assignment.client}: its update is refused: {reason}")
            accumulator.add(cut, tensors)
        _require_same(
            State(0, accumulator.merge()),
            State(0, whole_tensors),
            f"merging ({rule}) untouched sub-models changes the model",
        )
    return ["merging untouched sub-models changes no bit (contract 2)"]


def _order(bench: _Bench) -> list[str]:
    """Check contract 5: the order of clients does not matter."""
    _require_same(
        bench.later,
        _run_bench(bench.fresh(), bench.backwards),
        "the order of the clients in a round changes the result",
    )
    return ["the order of updates changes no bit (contract 5)"]


def _resumption(bench: _Bench) -> list[str]:
    """Check contract 7: a run resumed by a fresh scheme at every round ends with the same bits."""
    config, start = bench.config(), initial_state(bench.setup)
    state = start
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(_ROUNDS):
            setup = bench.fresh()
            state, _ = step(setup, state, bench.engine, _costs_of(setup.module))
            for name in start.memory.keys() ^ state.memory.keys():
                raise AssertionError(
                    f"memory {name!r} is not always there; `begin` must create all memory"
                )
            for name, tensor in start.memory.items():
                shape = tuple(state.memory[name].shape)
                _require(shape == tensor.shape, f"memory {name!r} changed its shape to {shape}")
            path = checkpoint.save(Path(folder), state, config)
            state = checkpoint.read_checkpoint(path, config, start)
    _require_same(state, bench.later, "a run resumed at every round has another result")
    return ["a resumed run ends with the same bits, memory included (contract 7)"]


def _passes(bench: _Bench) -> Sequence[Scheme]:
    passes = output_passes(bench.scheme)
    _require(len(passes) > 0, "there is no output pass")
    for one in passes:
        _require(
            callable(getattr(one, "select", None)),
            f"an output pass is of type {type(one).__name__}, which has no select",
        )
    return passes


def _final_output(bench: _Bench) -> list[str]:
    """Check the output step over all passes of the scheme."""
    setup = bench.fresh()
    state = _run_bench(setup, bench.engine, rounds=1)
    one, two = (
        output_step(setup, state, engine, _costs_of(setup.module), _SMOOTHNESS)
        for engine in (bench.engine, bench.backwards)
    )
    for name, tensor in one.tensors.items():
        _require(
            bool(tensor.isfinite().all()), f"the output step makes values of {name} not finite"
        )
    _require_same(one, two, "the order of the clients changes the output step")
    _require(_bits(one) != _bits(state), "the output step changes nothing")
    return ["the output step runs, in any order"]


def _check_whole(bench: _Bench) -> list[str]:
    """Check contract 1: with capacity 1, a run is FedAvg."""
    if bench.whole is None:
        return []
    setup = bench.fresh(clients=bench.whole)
    for axis, size, capacity, draw in _queries(setup, initial_state(setup)):
        missing = size - int(setup.scheme.select(axis, size, capacity, draw).sum())
        _require(
            missing == 0, f"{question(axis, size, capacity, draw)}: {missing} units are missing"
        )
    full = replace(bench, choice={"name": "full", "granularity": bench.choice["granularity"]})
    for rule in _RULES:
        scheme_setup, fedavg = (
            b.fresh(clients=bench.whole, merge={"rule": rule}) for b in (bench, full)
        )
        _require_same(
            _run_bench(scheme_setup, bench.engine, 1, memory=False),
            _run_bench(fedavg, bench.engine, 1, memory=False),
            f"a round ({rule}) at capacity 1 is not a round of FedAvg",
        )
    one, two = (
        output_step(s, initial_state(s), bench.engine, _costs_of(s.module), _SMOOTHNESS)
        for s in (scheme_setup, fedavg)
    )
    for name, tensor in one.tensors.items():  # sums over more passes are rounded differently
        close = torch.allclose(tensor, two.tensors[name], rtol=1e-5, atol=1e-6)
        _require(close, f"the output step at capacity 1 is not that of FedAvg: {name} differs")
    return ["at capacity 1 it is FedAvg, bit for bit (contract 1)"]


SchemeCheck = Callable[[_Bench], list[str]]
"""A check: it raises AssertionError with the reason, or returns the contracts that hold."""
_CHECKS: tuple[SchemeCheck, ...] = (
    _form, _purity, _sizes, _round_trip, _order, _resumption, _final_output
)  # fmt: skip
