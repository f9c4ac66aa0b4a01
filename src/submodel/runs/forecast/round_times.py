"""How long rounds take here: short trials of the real ones, in about a second.

A trial trains one of the first round's bundles for every capacity, or all of them where there is
time, for a few steps. What the whole round takes follows from two trials of different length, and
for other clients from shapes (`engines/estimate.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

from submodel.algorithm.execution import Bundle
from submodel.algorithm.rounds import OneModel, plan, step
from submodel.algorithm.tally import RoundReport
from submodel.algorithm.types import Setup, State
from submodel.engines.estimate import Estimate
from submodel.engines.processes.group import deal
from submodel.model.cost import CostModel
from submodel.model.travel import size_in_bytes
from submodel.prepare.engine import make_engine
from submodel.runs.forecast.sample import SampleGroup, TimedEngine
from submodel.runs.training import Training

_TRIAL = 0.4  # of the patience: what a trial may take, by the one before
_LARGE = 1 << 26  # bytes of a model of which a run keeps one copy, as `run_rounds` does
_ROUNDS, _CLIENTS = 20, 2000  # at least, and at most: of the plans that stand for all


@dataclass(frozen=True)
class RoundTimes:
    """What trials of a round tell.

    Args:
        setup: of the run.
        factors: by capacity, how much longer training takes than its estimate.
        seconds: of everything but training, for a whole round, by phase.
        how: what was tried, in words.
        reports: of the trials.
        state: after them.
        is_whole: whether all clients of a round were tried.
    """

    setup: Setup
    factors: Mapping[float, float]
    seconds: Mapping[str, float]
    how: str
    reports: Sequence[RoundReport]
    state: State
    is_whole: bool

    def training_seconds(self, plans: Sequence[Sequence[Bundle]], processes: int) -> float:
        """The mean over these rounds of what the busiest process takes.

        Args:
            plans: the bundles of each round.
            processes: that share a round.
        """
        shape_estimate = Estimate(self.setup)
        usual_factor = fmean(self.factors.values())

        def scale(bundle: Bundle) -> Bundle:
            shapes = shape_estimate.bundle(bundle.assignments)
            factor = self.factors.get(_capacity_of(bundle), usual_factor)
            return Bundle(
                bundle.assignments, factor * shapes.overhead, partial(float, factor * shapes.work)
            )

        return fmean(
            max(sum(b.cost for b in share) for share in deal([*map(scale, bundles)], processes))
            for bundles in plans
        )


def plans_of(training: Training) -> list[list[Bundle]]:
    """The bundles of rounds that stand for all, evenly spread; the first is among them.

    Args:
        training: what is to be trained.
    """
    engine = make_engine(training.config, training.setup)
    per_round = max(1, training.setup.population.per_round)
    rounds = min(training.rounds, max(_ROUNDS, _CLIENTS // per_round))
    numbers = (number * training.rounds // rounds for number in range(rounds))
    return [engine.bundles(plan(training.setup, number)) for number in numbers]


@dataclass(frozen=True)
class _Trial:
    """So many steps of some bundles: what the books say, and the seconds of each bundle."""

    steps: int
    report: RoundReport
    seconds: Sequence[float]


def time_rounds(
    training: Training, state: State, first_round: Sequence[Bundle], patience: float
) -> RoundTimes:
    """Try the first round a few times, shortened where it is long.

    Args:
        training: what is to be trained.
        state: the untrained model; a large one may be written over.
        first_round: the bundles of its first round.
        patience: seconds, roughly.
    """
    setup = training.setup
    shape_estimate = Estimate(setup)
    places = _choose(first_round, shape_estimate, patience)
    tried_bundles = [first_round[place] for place in places]
    group = SampleGroup(lambda bundles: [bundles[place] for place in places], 0.0)
    engine = TimedEngine(make_engine(training.config, setup))
    costs = CostModel(setup.module, setup.clients.dataset.example)
    one_model = OneModel() if size_in_bytes(state.tensors) >= _LARGE else None
    most_steps = max(shape_estimate.steps(a.client) for b in tried_bundles for a in b.assignments)

    def attempt(steps: int) -> _Trial:
        nonlocal state
        short = replace(setup, work=replace(setup.work, epochs=None, steps=steps))
        trial_setup = setup if steps == most_steps else short
        engine.bundle_seconds = []
        state, report = step(trial_setup, replace(state, round=0), engine, costs, group, one_model)
        return _Trial(steps, report, engine.bundle_seconds)

    attempt(1)  # what is made once is made here
    trials = [attempt(1)]
    seconds_per_step = max(sum(trials[0].seconds), 1e-6)
    steps = min(most_steps, max(1, int(_TRIAL * patience / seconds_per_step)))
    start = time.perf_counter()
    while len(trials) < 3 or time.perf_counter() - start < patience:
        if steps == 1 and time.perf_counter() - start > patience / 2:
            break
        trials.append(attempt(steps))
    long_trials = [trial for trial in trials if trial.steps == steps]
    clients = sum(len(bundle.assignments) for bundle in first_round)
    tried_clients = sum(len(bundle.assignments) for bundle in tried_bundles)
    phases = sorted({phase for trial in trials for phase in trial.report.seconds} - {"train"})
    seconds = {
        phase: clients / tried_clients
        * median(trial.report.seconds.get(phase, 0.0) for trial in long_trials)
        for phase in phases
    }  # fmt: skip
    how = f"{len(trials)} trial(s) of {tried_clients} of {clients} clients"
    if steps < most_steps:
        how += f", {steps} of {most_steps} steps each"
    factors = _factors(tried_bundles, trials[0], long_trials, shape_estimate)
    reports = [trial.report for trial in long_trials]
    is_whole = tried_clients == clients
    return RoundTimes(setup, factors, seconds, how, reports, state, is_whole)


def _capacity_of(bundle: Bundle) -> float:
    return bundle.assignments[0].capacity


def _choose(bundles: Sequence[Bundle], shape_estimate: Estimate, patience: float) -> list[int]:
    """Which bundles to try: all there is time for, one of every capacity before a second."""
    by_capacity: dict[float, list[tuple[float, int]]] = {}
    for place, bundle in enumerate(bundles):
        shapes = shape_estimate.bundle(bundle.assignments)
        seconds = shapes.cost / max(shape_estimate.steps(a.client) for a in bundle.assignments)
        by_capacity.setdefault(_capacity_of(bundle), []).append((seconds, place))
    turns = sorted(
        (turn, seconds, place)
        for places in by_capacity.values()
        for turn, (seconds, place) in enumerate(sorted(places))
    )
    tried_places: list[int] = []
    total = 0.0
    for _, seconds, place in turns:
        total += seconds
        if tried_places and total > patience:
            break
        tried_places.append(place)
    return sorted(tried_places)


def _factors(
    bundles: Sequence[Bundle],
    first: _Trial,
    long_trials: Sequence[_Trial],
    shape_estimate: Estimate,
) -> dict[float, float]:
    """By capacity: what all steps take, on a line through a short and a long trial, by estimate."""
    steps = long_trials[0].steps
    tried_seconds: dict[float, float] = {}
    estimates: dict[float, float] = {}
    for place, bundle in enumerate(bundles):
        capacity = _capacity_of(bundle)
        seconds = median(trial.seconds[place] for trial in long_trials)
        all_steps = max(shape_estimate.steps(a.client) for a in bundle.assignments)
        if all_steps > steps:
            slope = seconds / steps
            if steps > 1:
                slope = max(seconds - first.seconds[place], 0.5 * seconds) / (steps - 1)
            seconds += slope * (all_steps - steps)
        elif all_steps < steps:
            seconds *= all_steps / steps
        tried_seconds[capacity] = tried_seconds.get(capacity, 0.0) + seconds
        cost = shape_estimate.bundle(bundle.assignments).cost
        estimates[capacity] = estimates.get(capacity, 0.0) + cost
    return {capacity: tried_seconds[capacity] / estimates[capacity] for capacity in estimates}
