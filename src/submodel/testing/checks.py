"""What every scheme must keep, check by check; each returns what it found to hold."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.evaluation import EVALUATOR
from submodel.algorithm.merge import Accumulator, merge_rule
from submodel.algorithm.rounds import initial_state, output_step, plan, step
from submodel.algorithm.types import Assignment, Setup, State
from submodel.model.cut import gather
from submodel.runs import checkpoint
from submodel.schemes import Draw, Mask, Scheme, units_held
from submodel.schemes.base import output_passes
from submodel.schemes.draw import mask_problem, question
from submodel.testing.bench import (
    ROUNDS,
    BudgetScope,
    SchemeBench,
    bits,
    costs_of,
    require,
    require_same,
    run_bench,
)

_LIMITS: dict[BudgetScope, str] = {"axis": "axis by axis", "total": "in total"}
_DRAWN_ROUNDS = 50
_DEVIATIONS = 5  # of a mean, where masks have random sizes
_SMOOTHNESS = 20.0
_RULES = ("selective", "fill_in")  # that any model can be merged by


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


def form(bench: SchemeBench) -> list[str]:
    """Masks are what they must be, and so are output passes and cells."""
    state = initial_state(bench.setup)
    for scheme in (bench.scheme, *_passes(bench)):
        for query in _questions(replace(bench.setup, scheme=scheme), state):
            problem = mask_problem(scheme.select(*query), query[1])
            require(problem is None, f"{question(*query)}: {problem}")
    count = bench.scheme.cells
    require(count >= 1, f"there are {count} cells; there is one at least")
    for client in range(bench.setup.population.count):
        cell = bench.scheme.cell(client)
        require(0 <= cell < count, f"client {client} is in cell {cell} of {count}")
    return ["masks have the right form"]


def purity(bench: SchemeBench) -> list[str]:
    """The same question has the same answer, whenever and of whomever it is asked."""
    state = bench.later
    before = bits(state)

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
    require(bits(state) == before, "select changed the model or the memory")
    return ["a draw depends on its arguments alone"]


def sizes(bench: SchemeBench) -> list[str]:
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
            require(mean > 0, f"capacity {capacity:g} never holds anything of axis {axis!r}")
            variance = size * capacity * (1 - capacity) / len(places)
            statistics[axis] = mean, units_held(capacity, size), variance
        if bench.budget == "total":
            mean, share, variance = (
                sum(column) for column in zip(*statistics.values(), strict=True)
            )
            statistics = {"all together": (mean, int(share), variance)}
        for axis, (mean, share, variance) in statistics.items() if bench.budget is not None else ():
            require(
                mean <= share + _DEVIATIONS * math.sqrt(variance),
                f"capacity {capacity:g} holds {mean:.4g} units of axis {axis!r} on average; "
                f"its share is {share}",
            )
    if bench.budget is None:
        return ["something is held"]
    return [f"sizes are within the capacity, {_LIMITS[bench.budget]}"]


def round_trip(bench: SchemeBench) -> list[str]:
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
            require(reason is None, f"client {assignment.client}: its update is refused: {reason}")
            accumulator.add(cut, tensors)
        require_same(
            State(0, accumulator.merge()),
            State(0, whole_tensors),
            f"merging ({rule}) what clients hold, untouched, changes the model",
        )
    return ["what is gathered and merged untouched changes no bit (contract 2)"]


def order(bench: SchemeBench) -> list[str]:
    """Contract 5: clients in the opposite order."""
    require_same(
        bench.later,
        run_bench(bench.fresh(), bench.backwards),
        "the order of the clients in a round changes the result",
    )
    return ["the order of updates changes no bit (contract 5)"]


def resumption(bench: SchemeBench) -> list[str]:
    """Contract 7: saved and taken up by a fresh scheme at every round, or never stopped."""
    config, start = bench.config(), initial_state(bench.setup)
    state = start
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            setup = bench.fresh()
            state, _ = step(setup, state, bench.engine, costs_of(setup.module))
            for name in start.memory.keys() ^ state.memory.keys():
                raise AssertionError(
                    f"memory {name!r} is not there all the time; `begin` names all"
                )
            for name, tensor in start.memory.items():
                shape = tuple(state.memory[name].shape)
                require(shape == tensor.shape, f"memory {name!r} changed its shape to {shape}")
            path = checkpoint.save(Path(folder), state, config)
            state = checkpoint.read_checkpoint(path, config, start)
    require_same(
        state, bench.later, "a run that is saved and resumed at every round ends elsewhere"
    )
    return ["a resumed run ends with the same bits, memory included (contract 7)"]


def _passes(bench: SchemeBench) -> Sequence[Scheme]:
    passes = output_passes(bench.scheme)
    require(len(passes) > 0, "there is no output pass")
    for one in passes:
        require(
            callable(getattr(one, "select", None)),
            f"an output pass is of type {type(one).__name__}, which has no select",
        )
    return passes


def final_output(bench: SchemeBench) -> list[str]:
    """The output step over all the scheme's passes."""
    setup = bench.fresh()
    state = run_bench(setup, bench.engine, rounds=1)
    one, two = (
        output_step(setup, state, engine, costs_of(setup.module), _SMOOTHNESS)
        for engine in (bench.engine, bench.backwards)
    )
    for name, tensor in one.tensors.items():
        require(
            bool(tensor.isfinite().all()), f"the output step leaves {name} with values not finite"
        )
    require_same(one, two, "the order of the clients changes the output step")
    require(bits(one) != bits(state), "the output step changes nothing")
    return ["the output step runs, in any order"]


def everything(bench: SchemeBench) -> list[str]:
    """Contract 1: with capacity 1, FedAvg."""
    if bench.whole is None:
        return []
    setup = bench.fresh(clients=bench.whole)
    for axis, size, capacity, draw in _questions(setup, initial_state(setup)):
        missing = size - int(setup.scheme.select(axis, size, capacity, draw).sum())
        require(
            missing == 0, f"{question(axis, size, capacity, draw)}: {missing} units are missing"
        )
    full = replace(bench, choice={"name": "full", "granularity": bench.choice["granularity"]})
    for rule in _RULES:
        scheme_setup, fedavg = (
            b.fresh(clients=bench.whole, merge={"rule": rule}) for b in (bench, full)
        )
        require_same(
            run_bench(scheme_setup, bench.engine, 1, memory=False),
            run_bench(fedavg, bench.engine, 1, memory=False),
            f"a round ({rule}) at capacity 1 is not a round of FedAvg",
        )
    one, two = (
        output_step(s, initial_state(s), bench.engine, costs_of(s.module), _SMOOTHNESS)
        for s in (scheme_setup, fedavg)
    )
    for name, tensor in one.tensors.items():  # sums over more passes are rounded otherwise
        close = torch.allclose(tensor, two.tensors[name], rtol=1e-5, atol=1e-6)
        require(close, f"the output step at capacity 1 is not that of FedAvg: {name} differs")
    return ["at capacity 1 it is FedAvg, bit for bit (contract 1)"]


SchemeCheck = Callable[[SchemeBench], list[str]]
"""Raises AssertionError with the reason, or returns what holds."""
CHECKS: tuple[SchemeCheck, ...] = (form, purity, sizes, round_trip, order, resumption, final_output)
