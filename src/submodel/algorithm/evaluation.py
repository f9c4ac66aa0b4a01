"""Loss and metrics of the global model and its sub-models, on the test part and for every client.

In a group of processes, each computes some of the batches, and all get the result.

Clients need no test examples of their own. If the data assigns them (natural clients), each client
is scored on its own. Otherwise clients share the test part: each is scored on the examples of its
labels, weighted as the labels are among its training examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.algorithm.dispatch import cut_of, knowledge_of, scale_model
from submodel.algorithm.score import (
    BATCH,
    Score,
    batch_rows,
    cached_module,
    lay_out_images,
    layout_of,
    load_cut,
    present_layout,
    score,
    score_of_sums,
    split_inputs,
)
from submodel.algorithm.types import Assignment, Clients, Model, PartitionedClients, Setup, State
from submodel.core.errors import ConfigError, DataError
from submodel.core.randomness import generator
from submodel.data import Examples
from submodel.data.facts import Owners
from submodel.data.partitions import Natural
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
from submodel.tasks.loss import batch_weights

_OWN_STATISTICS_BATCH = 50  # FedRolex's CIFAR test batches at commit 3f1485e; 100 at its head
EVALUATOR = -1
"""Client number whose cuts represent a capacity when sub-models are evaluated."""


def assemble_module(
    setup: Setup,
    tensors: Mapping[str, Tensor],
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
    rows: Tensor | None = None,
) -> nn.Module:
    """Return the module of a cut with the global model's weights and calibrated static norms.

    Static batch norm gets the statistics of the clients' data, computed on their devices if the
    data is there, whatever statistics the run itself evaluates with. ``rows``: known statistics.
    """
    module = load_cut(setup.module, tensors, cut, device)
    _calibrate(setup, module, (tensors, cut), spread, rows)
    return module.eval()


def _calibrate(
    setup: Setup, module: nn.Module, model: Model, spread: Spread, rows: Tensor | None
) -> None:
    """Set the statistics of static norms to those of the clients' data."""
    if not needs_calibration(module):
        return
    if rows is None:
        (rows,) = setup.clients.moments([model])
    if rows is None:
        rows = moments_of(module, _statistics_inputs(setup), spread)
    set_statistics(module, rows)


def moments_of(module: nn.Module, x: Inputs, spread: Spread = in_order) -> Tensor:
    """Return the statistics of the module's static norms on these inputs, batch by batch."""
    layout_before, layout = present_layout(module), layout_of(module)
    if layout == layout_before:
        return moments(module, split_inputs(x, module), spread)
    lay_out_images(module, layout)
    rows = moments(module, split_inputs(x, module), spread)
    lay_out_images(module, layout_before)
    return rows


def _statistics_inputs(setup: Setup) -> Inputs:
    inputs: Inputs = some(setup.clients.dataset.train, setup.statistics.examples, setup.seed).x
    return inputs


def some(examples: Examples, count: int | None, seed: int) -> Examples:
    """Return ``count`` of the examples, evenly spread; None means all."""
    if count is None or count >= len(examples):
        return examples
    positions = torch.from_numpy(evenly(len(examples), count, seed))
    return examples.take(positions)


def evenly(total: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return a random position in each of ``count`` equal stretches of ``total`` positions.

    Examples are often sorted, or alternate: every n-th of them could all have one label.

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
    """Score the global model, or a cut of it, on the test part."""
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
    """Score the global model, or a cut of it, on each of some parts of the data.

    Static batch norm uses the statistics that the setup names. ``rows``: those of
    `measure_moments`.
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
    """Yield the global model, or a cut of it, with the statistics of the setup's evaluation.

    The module is cached and uses the state's tensors themselves, which must not change meanwhile.
    """
    by_test_batch = setup.statistics.source == "test_batch"
    with cached_module(setup.module, state.tensors, cut, device) as module:
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
    """Score the sub-model of each capacity in the coming round, on the test part.

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
    """Return the sub-model of each capacity in the coming round, except for the whole model."""
    models: dict[float, Model] = {}
    for capacity in set(setup.population.capacities):
        if capacity < 1 or setup.scheme.own_cut is not None:
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
    """Return the statistics of some models' static norms on the clients' data, as `moments`.

    Clients on their own devices are asked for all models at once. The result is None if the setup
    evaluates by other statistics, or has no static norms.
    """
    if setup.statistics.source != "clients" or not needs_calibration(setup.module):
        return [None for _ in models]
    if not isinstance(setup.clients, PartitionedClients):
        return setup.clients.moments(models)
    return [_local_moments(setup, model, device, spread) for model in models]


def _local_moments(
    setup: Setup, model: Model, device: torch.device | str, spread: Spread
) -> Tensor:
    with cached_module(setup.module, *model, device) as module:
        set_by_batch(module, False)
        return pool_moments(module, moments_of(module, _statistics_inputs(setup), spread))


_KEY = "train.evaluate_clients"
ScoredModel = Literal["submodel", "global"]
"""The model that scores a client: the sub-model of its capacity, or the global one."""


@dataclass(frozen=True)
class ClientTests:
    """The test part in disjoint groups, with each client's share of them."""

    groups: Sequence[NDArray[np.int64]]  # positions of test examples, by client or by label
    shares: Sequence[Mapping[int, float]]  # by client: groups, with the weight of their examples
    names: Sequence[str] = ()  # of the clients, if the data names them

    @cached_property
    def clients(self) -> list[int]:
        """Clients that can be scored."""
        return [client for client, share in enumerate(self.shares) if share]


@dataclass(frozen=True)
class ClientScore:
    """The score of one client."""

    client: int
    capacity: float  # in the coming round
    score: Score


def client_tests(clients: Clients, count: int) -> ClientTests:
    """Return every client's test examples; raises `ConfigError` if all clients have the same."""
    if not isinstance(clients, PartitionedClients):
        raise ConfigError(f"{_KEY}: the clients' data is on their devices")
    data, partition = clients.dataset, clients.partition
    owners = partition.owners if isinstance(partition, Natural) else None
    if owners is not None and owners.test is not None:
        return _with_names(_by_owner(owners.test, count), owners)
    if data.classes is None:
        raise ConfigError(
            f"{_KEY}: needs class labels, or test examples of every client: all clients would have "
            "the whole test part, and one score"
        )
    return _with_names(_by_label(clients, data.classes, count), owners)


def _with_names(tests: ClientTests, owners: Owners | None) -> ClientTests:
    if not tests.clients:
        raise ConfigError(f"{_KEY}: no client has any test examples")
    return tests if owners is None else replace(tests, names=owners.names)


def _by_owner(owners: NDArray[np.int64], count: int) -> ClientTests:
    order = np.argsort(owners, kind="stable")
    borders = np.searchsorted(owners[order], np.arange(count + 1))
    groups = [order[a:b] for a, b in pairwise(borders)]
    shares = [{client: 1.0} if len(group) else {} for client, group in enumerate(groups)]
    return ClientTests(groups, shares)


def _by_label(clients: PartitionedClients, classes: int, count: int) -> ClientTests:
    test, train = clients.dataset.test.y.numpy(), clients.dataset.train.y.numpy()
    groups = [np.flatnonzero(test == label) for label in range(classes)]
    shares = []
    for client in range(count):
        labels, counts = np.unique(train[clients.indices(client)], return_counts=True)
        pairs = zip(labels.tolist(), counts.tolist(), strict=True)
        shares.append({n: c / len(groups[n]) for n, c in pairs if len(groups[n])})
    return ClientTests(groups, shares)


def score_clients(
    setup: Setup,
    state: State,
    tests: ClientTests,
    model: ScoredModel = "submodel",
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
) -> list[ClientScore]:
    """Return the score of every client that can be scored, by number.

    Each client is scored with the sub-model of its capacity in the coming round, as in
    ``capacity_accuracy``, or with the global model.
    """
    models = capacity_models(setup, state) if model == "submodel" else {}
    clients_by_capacity: dict[float, list[int]] = {}
    capacities = {c: setup.population.capacity(c, state.round) for c in tests.clients}
    for client, capacity in capacities.items():
        scored_as = capacity if capacity in models else 1.0
        clients_by_capacity.setdefault(scored_as, []).append(client)
    scores = []
    for capacity, clients in clients_by_capacity.items():
        tensors, cut = models.get(capacity, (state.tensors, WHOLE))
        capacity_state = replace(state, tensors=tensors)
        numbers = sorted({group for client in clients for group in tests.shares[client]})
        groups = [tests.groups[n] for n in numbers]
        with evaluation_module(setup, capacity_state, cut, device, spread) as module:
            sums = _group_sums(setup, module, groups, spread)
        sums_of_group = dict(zip(numbers, sums, strict=True))
        for client in clients:
            share = tests.shares[client]
            total = torch.stack([weight * sums_of_group[n] for n, weight in share.items()]).sum(0)
            if total[1] > 0:  # otherwise none of its targets counts in the loss
                score = score_of_sums(setup, total)
                scores.append(ClientScore(client, capacities[client], score))
    if not scores:
        raise DataError("no client has test examples whose targets count in the loss")
    return sorted(scores, key=lambda row: row.client)


def _group_sums(
    setup: Setup, module: torch.nn.Module, groups: Sequence[NDArray[np.int64]], spread: Spread
) -> list[Tensor]:
    """Return for every group the sum of losses, their count, and the sums of the metrics."""
    parts = [torch.split(torch.from_numpy(places), BATCH) for places in groups]
    batches = [places for group in parts for places in group]
    rows = batch_rows(setup, module, setup.clients.dataset.test, batches, spread)
    shares = batch_weights(rows[:, 1].tolist(), [len(places) for places in batches])
    counts = torch.tensor(shares, dtype=torch.float64)
    losses = torch.where(counts > 0, rows[:, 0] * counts, torch.zeros_like(counts))
    table = torch.cat([torch.stack([losses, counts], 1), rows[:, 2:]], 1)
    return [part.sum(0) for part in torch.split(table, [len(group) for group in parts])]


def worst_quarter(values: Sequence[float], higher_is_better: bool) -> float:
    """Return the mean of the worst quarter of some values, the quarter's size rounded up.

    >>> worst_quarter([0.9, 0.2, 0.4, 0.8, 0.7], higher_is_better=True)
    0.30000000000000004
    >>> worst_quarter([1.0, 4.0, 2.0], higher_is_better=False)
    4.0
    """
    ascending = sorted(values, reverse=not higher_is_better)
    worst_values = ascending[: math.ceil(len(values) / 4)]
    return sum(worst_values) / len(worst_values)
