"""How long an evaluation takes here: a trial of a real one, some batches of each pass.

Where even that would take seconds, a forward of few examples is timed, and the rest follows from
the floating-point operations of all passes.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from submodel.algorithm.evaluation import evaluation_module, some
from submodel.algorithm.score import BATCH
from submodel.algorithm.types import Setup, State
from submodel.engines.estimate import Estimate
from submodel.model.cost import CostModel
from submodel.model.cut import WHOLE
from submodel.model.inputs import call, map_inputs, take_rows
from submodel.model.norm import Statistics, needs_calibration
from submodel.runs.forecast.sample import SampleGroup
from submodel.runs.scoring import scores
from submodel.runs.training import Training

_SECONDS_PER_FLOP = 1.5e-11  # of a forward of many examples, at best; only to choose what is tried


def time_evaluation(training: Training, state: State, patience: float) -> tuple[float, str, bool]:
    """One evaluation in one process: its seconds, how that is known, and whether it was tried.

    Args:
        training: what is to be trained.
        state: a model of it.
        patience: seconds, roughly.
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
    """The keys that make the evaluations of a run shorter, with what they are now.

    Args:
        training: what is to be trained.
    """
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
    """Whether static norms take their statistics from the clients' data first."""
    return setup.statistics.source == "clients" and needs_calibration(setup.module)


def _passes(training: Training) -> dict[float, int]:
    """By capacity: how many examples an evaluation passes through the model of it."""
    setup, settings = training.setup, training.config.train
    data = setup.clients.dataset
    examples = len(data.test)
    if _calibrates(setup):
        examples += len(some(data.train, setup.statistics.examples, setup.seed))
    passes = {1.0: examples}
    if data.held_out is not None:
        passes[1.0] += len(data.held_out)
    if settings.evaluate_train:
        passes[1.0] += len(some(data.train, settings.evaluate_train_examples, setup.seed))
    if settings.evaluate_capacities:
        passes |= {c: examples for c in set(setup.population.capacities) if c < 1}
    return passes


@torch.no_grad()
def _forward_seconds(training: Training, state: State, examples: int) -> float:
    """Of so many examples through the global model, when it is warm."""
    setup = replace(training.setup, statistics=Statistics("test_batch"))
    rows = take_rows(setup.clients.dataset.test.x, slice(examples))
    inputs = map_inputs(lambda tensor: tensor.to(training.device), rows)
    with evaluation_module(setup, state, WHOLE, training.device) as module:
        call(module, inputs)
        begin = time.perf_counter()
        call(module, inputs)
        return time.perf_counter() - begin
