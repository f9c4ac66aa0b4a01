"""Scores of every client: its share of the test part, and what models make of it.

Clients need not have test examples of their own. Where the data says whose they are (natural
clients), each is scored on its own. Else clients share the test part: each is scored on the
examples of the labels that it has, which weigh as the labels do among its training examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from submodel.algorithm.clients import Clients, PartitionedClients
from submodel.algorithm.evaluation import capacity_models, evaluation_module
from submodel.algorithm.score import BATCH, Score, batch_rows, score_of_sums
from submodel.algorithm.types import Setup, State
from submodel.data.owners import Owners
from submodel.data.partitions.natural import Natural
from submodel.errors import ConfigError, DataError
from submodel.model.cut import WHOLE
from submodel.model.norm import Spread, in_order
from submodel.tasks.counting import batch_weights

_KEY = "train.evaluate_clients"
ScoredModel = Literal["submodel", "global"]
"""What a client is scored with: the sub-model of its capacity, or the global model."""


@dataclass(frozen=True)
class ClientTests:
    """The test part in groups that do not overlap, and which of them are whose.

    Args:
        groups: the places of the test examples of each group: a client's, or a label's.
        shares: for every client the groups that it is scored on, and what an example of each
            weighs; none: it cannot be scored.
        names: of the clients, where the data names them.
    """

    groups: Sequence[NDArray[np.int64]]
    shares: Sequence[Mapping[int, float]]
    names: Sequence[str] = ()

    @cached_property
    def clients(self) -> list[int]:
        """Those who can be scored."""
        return [client for client, share in enumerate(self.shares) if share]


@dataclass(frozen=True)
class ClientScore:
    """What a client gets out of the training.

    Args:
        client: its number.
        capacity: how much it can hold in the coming round.
        score: of its examples.
    """

    client: int
    capacity: float
    score: Score


def client_tests(clients: Clients, count: int) -> ClientTests:
    """What every client is scored on; raises `ConfigError` where nothing tells clients apart.

    Args:
        clients: the clients' data.
        count: how many there are.
    """
    if not isinstance(clients, PartitionedClients):
        raise ConfigError([f"{_KEY}: the clients' data is on their devices"])
    data, partition = clients.dataset, clients.partition
    owners = partition.owners if isinstance(partition, Natural) else None
    if owners is not None and owners.test is not None:
        return _with_names(_by_owner(owners.test, count), owners)
    if data.classes is None:
        raise ConfigError(
            [
                f"{_KEY}: needs test examples that are somebody's, or class labels: all clients "
                "would have the whole test part, and one score"
            ]
        )
    return _with_names(_by_label(clients, data.classes, count), owners)


def _with_names(tests: ClientTests, owners: Owners | None) -> ClientTests:
    if not tests.clients:
        raise ConfigError([f"{_KEY}: no client has any test examples"])
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
    """The score of every client that can be scored, by number.

    Args:
        setup: what is trained.
        state: the model.
        tests: of `client_tests`.
        model: what each is scored with; a sub-model is the one that stands for its capacity in
            the coming round, as in ``capacity_accuracy``.
        device: where to compute.
        spread: how batches are shared by processes.
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
            if total[1] > 0:  # else none of its targets counts in the loss
                score = score_of_sums(setup, total)
                scores.append(ClientScore(client, capacities[client], score))
    if not scores:
        raise DataError("no client has test examples whose targets count in the loss")
    return sorted(scores, key=lambda row: row.client)


def _group_sums(
    setup: Setup, module: torch.nn.Module, groups: Sequence[NDArray[np.int64]], spread: Spread
) -> list[Tensor]:
    """For every group the sum of losses, what they count, and the sums of the metrics."""
    parts = [torch.split(torch.from_numpy(places), BATCH) for places in groups]
    batches = [places for group in parts for places in group]
    rows = batch_rows(setup, module, setup.clients.dataset.test, batches, spread)
    shares = batch_weights(rows[:, 1].tolist(), [len(places) for places in batches])
    counts = torch.tensor(shares, dtype=torch.float64)
    losses = torch.where(counts > 0, rows[:, 0] * counts, torch.zeros_like(counts))
    table = torch.cat([torch.stack([losses, counts], 1), rows[:, 2:]], 1)
    return [part.sum(0) for part in torch.split(table, [len(group) for group in parts])]


def worst_quarter(values: Sequence[float], higher_is_better: bool) -> float:
    """The mean of the worst quarter of some values, rounded up to whole ones.

    Args:
        values: one for every client.
        higher_is_better: which direction is better.

    >>> worst_quarter([0.9, 0.2, 0.4, 0.8, 0.7], higher_is_better=True)
    0.30000000000000004
    >>> worst_quarter([1.0, 4.0, 2.0], higher_is_better=False)
    4.0
    """
    ascending = sorted(values, reverse=not higher_is_better)
    worst_values = ascending[: math.ceil(len(values) / 4)]
    return sum(worst_values) / len(worst_values)
