"""Short trials of rounds and evaluations on this machine, in about a second.

A trial trains one of the first round's bundles for every capacity, or all if there is time, for a
few steps. The time of the whole round is extrapolated from two trials of different length, and for
other clients from shapes (`engines/estimate.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median

import torch
from torch import Tensor

from submodel.algorithm.evaluation import evaluation_module, some
from submodel.algorithm.execution import Bundle, Engine
from submodel.algorithm.merge import Accumulator
from submodel.algorithm.round_statistics import RoundReport, RoundStatistics
from submodel.algorithm.rounds import OneModel, plan, step
from submodel.algorithm.score import BATCH
from submodel.algorithm.types import Assignment, Outcome, Setup, State, Task
from submodel.config.engine import make_engine
from submodel.engines.estimate import Estimate
from submodel.engines.processes.group import deal
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE
from submodel.model.inputs import call, map_inputs, take_rows
from submodel.model.norm import Statistics, needs_calibration
from submodel.model.travel import size_in_bytes
from submodel.runs.scoring import scored_parts, scores
from submodel.runs.training import Training

_TRIAL = 0.4  # time of a trial as a fraction of the patience, estimated from the one before
_LARGE = 1 << 26  # bytes of a model of which a run keeps one copy, as in `run_rounds`
_ROUNDS, _CLIENTS = 20, 2000  # minimum of rounds, and maximum of clients, in representative plans
_SECONDS_PER_FLOP = 1.5e-11  # of a fast forward of many examples; used only to choose a trial


@dataclass(frozen=True)
class RoundTimes:
    """Times of trials of a round.

    Args:
        setup: setup of the run.
        factors: ratio of the training time to its estimate, by capacity.
        seconds: seconds of everything but training in a whole round, by phase.
        how: description of the trials.
        reports: reports of the trials.
        state: state after the trials.
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
        """Return the seconds of the busiest process, averaged over these rounds."""
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
    """Return the bundles of representative rounds, evenly spread, including the first."""
    engine = make_engine(training.config, training.setup)
    per_round = max(1, training.setup.population.per_round)
    rounds = min(training.rounds, max(_ROUNDS, _CLIENTS // per_round))
    numbers = (number * training.rounds // rounds for number in range(rounds))
    return [engine.bundles(plan(training.setup, number)) for number in numbers]


@dataclass(frozen=True)
class _Trial:
    """A trial round of some bundles with a number of steps: report and seconds of each bundle."""

    steps: int
    report: RoundReport
    seconds: Sequence[float]


def time_rounds(
    training: Training, state: State, first_round: Sequence[Bundle], patience: float
) -> RoundTimes:
    """Try the first round for about ``patience`` seconds, shortened if it is long.

    A large model in ``state`` may be overwritten.
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

    attempt(1)  # includes all one-time work
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
    """Choose as many bundles as there is time for, one of every capacity before a second one."""
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
    """Return by capacity the ratio of the seconds of all steps, extrapolated, to the estimate."""
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


def time_evaluation(training: Training, state: State, patience: float) -> tuple[float, str, bool]:
    """Time one evaluation in one process; return seconds, their source, and whether it was tried.

    If a trial would take seconds, a forward of few examples is timed and scaled by the FLOPs of all
    passes.
    """
    passes = _passes(training)
    costs = CostModel(training.setup.module, training.setup.clients.dataset.example)
    shape_estimate = Estimate(training.setup)
    flops = {c: costs.forward_flops(shape_estimate.cut(c)) for c in passes}
    passes_per_model = 2 if _calibrates(training.setup) else 1
    least = sum(flops.values()) * passes_per_model * BATCH * _SECONDS_PER_FLOP
    if least > patience:
        total = sum(flops[c] * examples for c, examples in passes.items())
        few = max(2, int(BATCH * 0.3 * patience / least))
        seconds = _forward_seconds(training, state, few) / (few * flops[1.0])
        return total * seconds, f"by FLOPs, from a forward of {few} examples", False
    trials: list[float] = []
    batches_left_out = 0
    start = time.perf_counter()
    while not trials or (len(trials) < 4 and time.perf_counter() - start < patience / 2):
        group = SampleGroup(lambda bundles: bundles, patience / 4 / len(passes))
        begin = time.perf_counter()
        scores(training, state, group)
        trials.append(time.perf_counter() - begin + group.seconds_left_out)
        batches_left_out = group.batches_left_out
    how = "tried" if not batches_left_out else f"tried but for {batches_left_out} batches"
    return min(trials), how, True


def evaluation_keys(training: Training) -> list[str]:
    """List the keys that shorten the evaluations of a run, with their current values."""
    setup, settings = training.setup, training.config.train
    data = setup.clients.dataset
    keys = [f"train.evaluate_every (now {settings.evaluate_every})"]
    if _calibrates(setup):
        count = len(some(data.train, setup.statistics.examples, setup.seed))
        keys.append(f"train.statistics_examples (for norms; now {count:,} training examples)")
    if settings.evaluate_train:
        count = len(some(data.train, settings.evaluate_train_examples, setup.seed))
        keys.append(f"train.evaluate_train_examples (now {count:,})")
    if settings.evaluate_clients != "no":
        keys.append(f"train.evaluate_clients (now {settings.evaluate_clients})")
    if settings.evaluate_capacities and any(c < 1 for c in setup.population.capacities):
        count = len(set(setup.population.capacities))
        keys.append(f"train.evaluate_capacities (now true: {count} capacities)")
    return [*keys, f"data.test_examples (now {len(data.test):,})"]


def _calibrates(setup: Setup) -> bool:
    """Whether the statistics of static norms are measured on the clients' data first."""
    return setup.statistics.source == "clients" and needs_calibration(setup.module)


def _passes(training: Training) -> dict[float, int]:
    """Count by capacity the examples that an evaluation passes through the model."""
    setup = training.setup
    data = setup.clients.dataset
    calibrating = 0
    if _calibrates(setup):
        calibrating = len(some(data.train, setup.statistics.examples, setup.seed))
    passes = {1.0: calibrating + sum(map(len, scored_parts(training).values()))}
    if training.config.train.evaluate_capacities:
        small = (c for c in set(setup.population.capacities) if c < 1)
        passes |= dict.fromkeys(small, calibrating + len(data.test))
    return passes


@torch.no_grad()
def _forward_seconds(training: Training, state: State, examples: int) -> float:
    """Time a warm forward of some examples through the global model."""
    setup = replace(training.setup, statistics=Statistics("test_batch"))
    rows = take_rows(setup.clients.dataset.test.x, slice(examples))
    inputs = map_inputs(lambda tensor: tensor.to(training.device), rows)
    with evaluation_module(setup, state, WHOLE, training.device) as module:
        call(module, inputs)
        begin = time.perf_counter()
        call(module, inputs)
        return time.perf_counter() - begin


class SampleGroup:
    """A group of one process that does a part of the work and estimates the rest.

    Args:
        choose: function that selects the bundles of a round to train.
        longest: seconds after which no further batch of an evaluation is computed.
    """

    def __init__(
        self, choose: Callable[[Sequence[Bundle]], Sequence[Bundle]], longest: float
    ) -> None:
        self._choose, self._longest = choose, longest
        self.seconds_left_out = 0.0
        """Estimated seconds of the batches left out."""
        self.batches_left_out = 0

    def share(self, bundles: Sequence[Bundle]) -> Sequence[Bundle]:
        """Return the chosen bundles."""
        return self._choose(bundles)

    def reduce(self, accumulators: Sequence[Accumulator], statistics: RoundStatistics) -> None:
        """Do nothing: there is no other process."""

    def spread(self, count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
        """Compute as many results as there is time for; repeat the last for the others."""
        start = time.perf_counter()
        results: list[Tensor] = []
        for number in range(count):
            results.append(work(number))
            if time.perf_counter() - start > self._longest:
                break
        rest = count - len(results)
        if rest:
            seconds_per_batch = (time.perf_counter() - start) / len(results)
            self.seconds_left_out += rest * seconds_per_batch
            self.batches_left_out += rest
        return results + results[-1:] * rest


class TimedEngine:
    """Engine that times each bundle, without the time for making tasks and merging."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.bundle_seconds: list[float] = []

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """Return the bundles of the engine."""
        return self._engine.bundles(assignments)

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:
        """Run the tasks on the engine."""
        waiting = _TimedTasks(tasks)
        outcomes = self._engine.run(waiting)
        busy = 0.0
        while True:
            start, elsewhere = time.perf_counter(), waiting.seconds
            outcome = next(outcomes, None)
            busy += time.perf_counter() - start - (waiting.seconds - elsewhere)
            if outcome is None:
                break
            yield outcome
        self.bundle_seconds.append(busy)


class _TimedTasks:
    """Iterator over tasks that measures the seconds for making them."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._tasks = iter(tasks)
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Task]:
        return self

    def __next__(self) -> Task:
        start = time.perf_counter()
        try:
            return next(self._tasks)
        finally:
            self.seconds += time.perf_counter() - start
