"""Checks of the contracts of schemes, own ones too, in a small run.

Its net has a flatten; forty images, five clients.
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
from submodel.config.findings import ModelFindings
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
_ROUNDS = 4  # of the small run
_DRAWN_ROUNDS = 50
_DEVIATIONS = 5  # of a mean, where masks have random sizes
_SMOOTHNESS = 20.0
_RULES = ("selective", "fill_in")  # that any model can be merged by
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
    """Try a scheme on a small net with the serial engine; returns what was checked.

    ``scheme`` is what stands under ``scheme`` in a configuration: a name, a table of keys, or the
    class or object itself. Other sections of one (``clients``, ``merge``, ...) adapt the small run
    of five clients, three per round, of capacities 1, 1/2 and 1/4. Unless a granularity is named,
    both are tried, and one that the scheme refuses is left out.

    ``budget`` says what a capacity bounds: its share of every axis, on average; the shares of all
    axes in total; or, None, nothing. ``whole`` says that a client of capacity 1 holds everything
    and trains as FedAvg does.

    Raises AssertionError with the reason where the scheme breaks what every scheme must keep.

    >>> check_scheme({"name": "static", "granularity": "unit"})[:2]
    ['unit: masks have the right form', 'unit: a draw depends on its arguments alone']
    """
    choice = dict(scheme) if isinstance(scheme, Mapping) else {"name": scheme}
    granularities = [choice["granularity"]] if "granularity" in choice else ["unit", "coordinate"]
    findings: list[str] = []
    refusals: list[str] = []
    for granularity in granularities:
        bench = _Bench({**choice, "granularity": granularity}, sections, budget)
        bench.config()  # what is misspelt is no refusal
        try:
            bench.setup  # noqa: B018 - made on the first access
        except ConfigError as error:
            refusals.append(f"{granularity}: {error}")
            continue
        except SubmodelError as error:  # what is not even asked in a run
            raise AssertionError(f"{granularity}: {error}") from error
        for check in (*_CHECKS, _everything) if whole else _CHECKS:
            findings += [f"{granularity}: {what}" for what in check(bench)]
    _require(bool(findings), "\n".join(["the scheme refuses the run", *refusals]))
    return findings


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
    """The costs of the small net, or of its low-rank form."""
    return CostModel(module, _data().example)


class _OneByOne(SerialEngine):
    """The serial engine in either order; what work costs does not matter here."""

    def __init__(self, setup: Setup, backwards: bool = False) -> None:
        super().__init__(setup)
        self._step = -1 if backwards else 1

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """A bundle for every client."""
        return [Bundle([assignment]) for assignment in assignments[:: self._step]]


@dataclass(frozen=True)
class _Bench:
    """The small run; a setup is made for every fresh scheme."""

    choice: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]
    budget: BudgetScope | None
    found: dict[str, ModelFindings] = field(default_factory=dict, init=False)  # by what is changed

    def config(self, **changes: Mapping[str, Any]) -> Config:
        """The configuration, with some sections changed."""
        tables: dict[str, Any] = {"scheme": self.choice}
        for table in (_SECTIONS, self.sections, changes):
            for name, section in table.items():
                tables[name] = {**tables.get(name, {}), **section}
        return parse(tables)

    def fresh(self, **changes: Mapping[str, Any]) -> Setup:
        """A setup with a scheme of its own; model and sub-models are tried the first time."""
        config = self.config(**changes)
        has_ranks = config.model.factorised or config.model.adapters is not None
        axes = None if has_ranks else _axes()
        place = json.dumps(changes, sort_keys=True, default=str)
        setup = prepare(config, _net(), _data(), axes, findings=self.found.get(place))
        self.found[place] = ModelFindings(setup.axes, selects_logits=False, is_empty=False)
        return setup

    @cached_property
    def setup(self) -> Setup:
        """The setup whose scheme is asked."""
        return self.fresh()

    @cached_property
    def engine(self) -> _OneByOne:
        """The engine for all setups of the bench, which differ only in their schemes."""
        return _OneByOne(self.setup)

    @cached_property
    def backwards(self) -> _OneByOne:
        """The engine that trains the clients in the opposite order."""
        return _OneByOne(self.setup, backwards=True)

    @property
    def scheme(self) -> Scheme:
        """The scheme that is asked."""
        return self.setup.scheme

    @cached_property
    def later(self) -> State:
        """The model after some rounds, when a scheme that adapts has done so."""
        return _run_bench(self.fresh(), self.engine)

    @cached_property
    def whole(self) -> dict[str, Any] | None:
        """The clients of a run at capacity 1, if the scheme is defined for one."""
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
    """Some rounds from the start; ``memory`` keeps what scheme and server remember."""
    state = initial_state(setup)
    for _ in range(rounds):
        state, _ = step(setup, state, engine, _costs_of(setup.module))
    return state if memory else replace(state, memory={})


def _bits(state: State) -> dict[str, bytes]:
    """Model and memory, byte by byte."""
    parts: dict[str, Tensor] = {
        **state.tensors,
        **{f"memory {n}": t for n, t in state.memory.items()},
    }
    return {name: tensor.detach().numpy().tobytes() for name, tensor in parts.items()}


def _require_same(one: State, two: State, reason: str) -> None:
    """Require equal bits."""
    bits_of_one, bits_of_two = _bits(one), _bits(two)
    names = sorted(bits_of_one.keys() | bits_of_two.keys())
    differ = [name for name in names if bits_of_one.get(name) != bits_of_two.get(name)]
    _require(not differ, f"{reason}: {', '.join(differ)}")


def _require(condition: bool, reason: str) -> None:
    """An assertion that holds in optimised code too."""
    if not condition:
        raise AssertionError(reason)


def _questions(setup: Setup, state: State) -> Iterator[tuple[str, int, float, Draw]]:
    """What a run asks of a scheme: for its clients, and for evaluation."""
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
    """Masks are what they must be, and so are output passes and cells."""
    state = initial_state(bench.setup)
    for scheme in (bench.scheme, *_passes(bench)):
        for query in _questions(replace(bench.setup, scheme=scheme), state):
            problem = mask_problem(scheme.select(*query), query[1])
            _require(problem is None, f"{question(*query)}: {problem}")
    count = bench.scheme.cells
    _require(count >= 1, f"there are {count} cells; there is one at least")
    for client in range(bench.setup.population.count):
        cell = bench.scheme.cell(client)
        _require(0 <= cell < count, f"client {client} is in cell {cell} of {count}")
    return ["masks have the right form"]


def _purity(bench: _Bench) -> list[str]:
    """The same question has the same answer, whenever and of whomever it is asked."""
    state = bench.later
    before = _bits(state)

    def answers(scheme: Scheme, backwards: bool) -> list[Mask]:
        questions = list(_questions(bench.setup, state))
        masks = [scheme.select(*q).copy() for q in (questions[::-1] if backwards else questions)]
        return masks[::-1] if backwards else masks

    first = answers(bench.scheme, backwards=False)
    others = {
        "asked again": answers(bench.scheme, backwards=False),
        "asked in another order": answers(bench.scheme, backwards=True),
        "another scheme of the same settings is asked": answers(bench.fresh().scheme, True),
    }
    for how, masks in others.items():
        every = _questions(bench.setup, state)
        for query, one, two in zip(every, first, masks, strict=True):
            if not np.array_equal(one, two):
                raise AssertionError(f"{question(*query)}: the mask is another one when {how}")
    _require(_bits(state) == before, "select changed the model or the memory")
    return ["a draw depends on its arguments alone"]


def _sizes(bench: _Bench) -> list[str]:
    """What a capacity holds, on average over draws."""
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
            _require(mean > 0, f"capacity {capacity:g} never holds anything of axis {axis!r}")
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
        return ["something is held"]
    return [f"sizes are within the capacity, {_LIMITS[bench.budget]}"]


def _round_trip(bench: _Bench) -> list[str]:
    """Contract 2: what comes back as it went leaves no trace, under either rule."""
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
            f"merging ({rule}) what clients hold, untouched, changes the model",
        )
    return ["what is gathered and merged untouched changes no bit (contract 2)"]


def _order(bench: _Bench) -> list[str]:
    """Contract 5: clients in the opposite order."""
    _require_same(
        bench.later,
        _run_bench(bench.fresh(), bench.backwards),
        "the order of the clients in a round changes the result",
    )
    return ["the order of updates changes no bit (contract 5)"]


def _resumption(bench: _Bench) -> list[str]:
    """Contract 7: saved and taken up by a fresh scheme at every round, or never stopped."""
    config, start = bench.config(), initial_state(bench.setup)
    state = start
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(_ROUNDS):
            setup = bench.fresh()
            state, _ = step(setup, state, bench.engine, _costs_of(setup.module))
            for name in start.memory.keys() ^ state.memory.keys():
                raise AssertionError(
                    f"memory {name!r} is not there all the time; `begin` names all"
                )
            for name, tensor in start.memory.items():
                shape = tuple(state.memory[name].shape)
                _require(shape == tensor.shape, f"memory {name!r} changed its shape to {shape}")
            path = checkpoint.save(Path(folder), state, config)
            state = checkpoint.read_checkpoint(path, config, start)
    _require_same(
        state, bench.later, "a run that is saved and resumed at every round ends elsewhere"
    )
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
    """The output step over all the scheme's passes."""
    setup = bench.fresh()
    state = _run_bench(setup, bench.engine, rounds=1)
    one, two = (
        output_step(setup, state, engine, _costs_of(setup.module), _SMOOTHNESS)
        for engine in (bench.engine, bench.backwards)
    )
    for name, tensor in one.tensors.items():
        _require(
            bool(tensor.isfinite().all()), f"the output step leaves {name} with values not finite"
        )
    _require_same(one, two, "the order of the clients changes the output step")
    _require(_bits(one) != _bits(state), "the output step changes nothing")
    return ["the output step runs, in any order"]


def _everything(bench: _Bench) -> list[str]:
    """Contract 1: with capacity 1, FedAvg."""
    if bench.whole is None:
        return []
    setup = bench.fresh(clients=bench.whole)
    for axis, size, capacity, draw in _questions(setup, initial_state(setup)):
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
    for name, tensor in one.tensors.items():  # sums over more passes are rounded otherwise
        close = torch.allclose(tensor, two.tensors[name], rtol=1e-5, atol=1e-6)
        _require(close, f"the output step at capacity 1 is not that of FedAvg: {name} differs")
    return ["at capacity 1 it is FedAvg, bit for bit (contract 1)"]


SchemeCheck = Callable[[_Bench], list[str]]
"""Raises AssertionError with the reason, or returns what holds."""
_CHECKS: tuple[SchemeCheck, ...] = (
    _form, _purity, _sizes, _round_trip, _order, _resumption, _final_output
)  # fmt: skip
