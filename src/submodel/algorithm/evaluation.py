"""Loss and metrics of the global model and of its sub-models, on the test part or another.

In a group of processes each computes some of the batches, and all know the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.algorithm.clients import Model, PartitionedClients
from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.lending import lent_module, load_cut
from submodel.algorithm.scaling import scale_model
from submodel.algorithm.score import (
    BATCH,
    Score,
    lay_out_images,
    layout_of,
    present_layout,
    score,
    split_inputs,
)
from submodel.algorithm.types import Assignment, Setup, State
from submodel.data import Examples
from submodel.model.cut import WHOLE, Cut
from submodel.model.inputs import Inputs
from submodel.model.norm import (
    Spread,
    in_order,
    moments,
    needs_calibration,
    pool_moments,
    set_by_batch,
    set_statistics,
)
from submodel.randomness import generator

_OWN_STATISTICS_BATCH = 50  # as FedRolex's CIFAR test batches were at 3f1485e; 100 at its head
EVALUATOR = -1
"""The client number whose cuts stand for a capacity when sub-models are evaluated."""


def assemble_module(
    setup: Setup,
    tensors: Mapping[str, Tensor],
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
    rows: Tensor | None = None,
) -> nn.Module:
    """The module of a cut with the global model's weights, its static norms calibrated.

    Static batch norm takes its statistics from the clients' data, on their devices where it is
    there, whatever statistics the run itself evaluates with; ``rows``: they are known already.
    """
    module = load_cut(setup.module, tensors, cut, device)
    _calibrate(setup, module, (tensors, cut), spread, rows)
    return module.eval()


def _calibrate(
    setup: Setup, module: nn.Module, model: Model, spread: Spread, rows: Tensor | None
) -> None:
    """Let static norms have the statistics of the clients' data."""
    if not needs_calibration(module):
        return
    if rows is None:
        (rows,) = setup.clients.moments([model])
    if rows is None:
        rows = moments_of(module, _statistics_inputs(setup), spread)
    set_statistics(module, rows)


def moments_of(module: nn.Module, x: Inputs, spread: Spread = in_order) -> Tensor:
    """What the module's static norms see of these inputs, batch by batch."""
    layout_before, layout = present_layout(module), layout_of(module)
    if layout == layout_before:
        return moments(module, split_inputs(x, module), spread)
    lay_out_images(module, layout)
    rows = moments(module, split_inputs(x, module), spread)
    lay_out_images(module, layout_before)
    return rows


def _statistics_inputs(setup: Setup) -> Inputs:
    """The clients' examples that static batch norm takes its statistics from."""
    inputs: Inputs = some(setup.clients.dataset.train, setup.statistics.examples, setup.seed).x
    return inputs


def some(examples: Examples, count: int | None, seed: int) -> Examples:
    """So many of the examples, evenly spread; None: all."""
    if count is None or count >= len(examples):
        return examples
    positions = torch.from_numpy(evenly(len(examples), count, seed))
    return examples.take(positions)


def evenly(total: int, count: int, seed: int) -> NDArray[np.int64]:
    """A random position out of each of ``count`` equal stretches of ``total`` positions.

    Examples often come sorted, or in turns: taking every n-th could take one label alone.

    >>> evenly(12, 4, seed=0) // 3
    array([0, 1, 2, 3])
    """
    borders = np.arange(count + 1) * total // count
    return generator(seed, "statistics").integers(borders[:-1], borders[1:])


def evaluate_model(
    setup: Setup,
    state: State,
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
) -> Score:
    """The global model, or a cut of it, on the test part."""
    test = setup.clients.dataset.test
    return evaluate_parts(setup, state, [test], cut, device, spread)[0]


def evaluate_parts(
    setup: Setup,
    state: State,
    parts: Sequence[Examples],
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
    rows: Tensor | None = None,
) -> list[Score]:
    """The global model, or a cut of it, on each of some parts of the data.

    Static batch norm goes by the statistics that the setup names; ``rows``: of `measure_moments`.
    """
    by_test_batch = setup.statistics.source == "test_batch"
    batch = _OWN_STATISTICS_BATCH if by_test_batch else BATCH
    with evaluation_module(setup, state, cut, device, spread, rows) as module:
        return [score(module, part, setup, spread, batch) for part in parts]


@contextmanager
def evaluation_module(
    setup: Setup,
    state: State,
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
    rows: Tensor | None = None,
) -> Iterator[nn.Module]:
    """The global model, or a cut of it, with the statistics that the setup evaluates with.

    It is lent, and computes with the state's tensors themselves, so nobody may change them in here.
    """
    by_test_batch = setup.statistics.source == "test_batch"
    with lent_module(setup.module, state.tensors, cut, device) as module:
        set_by_batch(module, by_test_batch)
        if not by_test_batch:
            _calibrate(setup, module, (state.tensors, cut), spread, rows)
        yield module


def evaluate_capacities(
    setup: Setup,
    state: State,
    whole: Score,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
    rows: Mapping[float, Tensor | None] = MappingProxyType({}),
) -> dict[float, Score]:
    """The sub-model that each capacity would get in the coming round, on the test part.

    ``whole`` is the global model's score, which capacity 1 has under every scheme, unless the
    channels of its layers are not aligned.
    """
    models = capacity_models(setup, state)
    test = setup.clients.dataset.test
    scores = {}
    for capacity in sorted(set(setup.population.capacities), reverse=True):
        if capacity not in models:
            scores[capacity] = whole
            continue
        tensors, cut = models[capacity]
        capacity_state = replace(state, tensors=tensors)
        known_rows = rows.get(capacity)
        (scores[capacity],) = evaluate_parts(
            setup, capacity_state, [test], cut, device, spread, known_rows
        )
    return scores


def capacity_models(setup: Setup, state: State) -> dict[float, Model]:
    """What each capacity would get in the coming round, but for capacities that get all of it."""
    models: dict[float, Model] = {}
    for capacity in set(setup.population.capacities):
        if capacity < 1 or setup.alignment != "residual":
            where = Assignment(state.round, EVALUATOR, capacity)
            cut = cut_of(setup, where, knowledge=knowledge_of(setup, state))
            models[capacity] = scale_model(setup, state.tensors, capacity), cut
    return models


def measure_moments(
    setup: Setup,
    models: Sequence[Model],
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
) -> list[Tensor | None]:
    """What the static norms of some models see of the clients' data: a row of `moments` for each.

    Clients on their own devices are asked all at once. None where the setup evaluates by other
    statistics, or has none.
    """
    if setup.statistics.source != "clients" or not needs_calibration(setup.module):
        return [None for _ in models]
    if not isinstance(setup.clients, PartitionedClients):
        return setup.clients.moments(models)
    return [_local_moments(setup, model, device, spread) for model in models]


def _local_moments(
    setup: Setup, model: Model, device: torch.device | str, spread: Spread
) -> Tensor:
    """The same for one model, of data that is here."""
    with lent_module(setup.module, *model, device) as module:
        set_by_batch(module, False)
        return pool_moments(module, moments_of(module, _statistics_inputs(setup), spread))
