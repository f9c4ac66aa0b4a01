"""Partitions, capacities and sampling: exact counts, and nothing that grows with the population."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from submodel.data import Population, dataset, digits, make_partition
from submodel.data.partitions import assign_labels
from submodel.errors import ConfigError, DataError

LABELS = digits().train.y.numpy()


@pytest.mark.parametrize("labels_per_client", [None, 1, 3, 10])
def test_every_example_is_used_once(labels_per_client: int | None) -> None:
    partition = make_partition(LABELS, len(LABELS), 50, labels_per_client, None, seed=0)
    parts = [partition.indices(client) for client in range(50)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(LABELS)))
    assert all(np.array_equal(part, partition.indices(c)) for c, part in enumerate(parts))
    assert [partition.size(client) for client in range(50)] == [len(part) for part in parts]


@pytest.mark.parametrize("labels_per_client", [1, 2, 3, 7])
def test_each_client_has_exactly_its_labels_in_equal_shards(labels_per_client: int) -> None:
    partition = make_partition(LABELS, len(LABELS), 50, labels_per_client, None, seed=1)
    shards: dict[int, list[int]] = {label: [] for label in range(10)}
    for client in range(50):
        held, counts = np.unique(LABELS[partition.indices(client)], return_counts=True)
        assert len(held) == labels_per_client
        for label, count in zip(held, counts, strict=True):
            shards[int(label)].append(int(count))
    for sizes in shards.values():
        assert len(sizes) == 50 * labels_per_client / 10
        assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@given(st.data())
def test_labels_are_dealt_out_evenly_for_any_numbers(data: st.DataObject) -> None:
    classes = data.draw(st.integers(1, 12))
    each = data.draw(st.integers(1, classes))
    clients = data.draw(st.integers(1, 40))
    table = assign_labels(clients, classes, each, seed=data.draw(st.integers(0, 99)))
    assert all(len(set(row)) == each for row in table.tolist())
    counts = np.bincount(table.ravel(), minlength=classes)
    assert counts.max() - counts.min() <= 1


def test_with_fewer_places_than_classes_some_labels_are_nobodys() -> None:
    partition = make_partition(LABELS, len(LABELS), 2, 3, None, seed=0)
    held = [set(LABELS[partition.indices(c)].tolist()) for c in range(2)]
    assert [len(labels) for labels in held] == [3, 3]
    assert not held[0] & held[1]


def test_a_client_may_draw_its_own_examples() -> None:
    partition = make_partition(LABELS, len(LABELS), 10**6, 3, 20, seed=0)
    for client in (0, 999_999):
        own = partition.indices(client)
        assert len(own) == len(set(own.tolist())) == partition.size(client) == 20
        assert len(set(LABELS[own].tolist())) == 3


def test_a_partition_that_leaves_a_client_empty_is_refused() -> None:
    for labels_per_client in (None, 3):
        with pytest.raises(ConfigError, match="examples_per_client"):
            make_partition(LABELS, len(LABELS), 10**6, labels_per_client, None, seed=0)
    with pytest.raises(ConfigError, match="11 is more than the 10 classes"):
        make_partition(LABELS, len(LABELS), 10, 11, None, seed=0)


def test_fixed_capacities_come_in_exact_proportions_and_stay() -> None:
    clients = Population(40, 10, [1.0, 0.5, 0.25], [1, 2, 1], "fixed", seed=3)
    drawn = [clients.capacity(c, 0) for c in range(40)]
    assert (drawn.count(1.0), drawn.count(0.5), drawn.count(0.25)) == (10, 20, 10)
    assert drawn == [clients.capacity(c, 9) for c in range(40)]
    assert drawn != sorted(drawn, reverse=True)


def test_dynamic_capacities_are_redrawn_every_round() -> None:
    clients = Population(10, 10, [1.0, 0.5], [1, 3], "dynamic", seed=3)
    drawn = np.array([[clients.capacity(c, r) for c in range(10)] for r in range(400)])
    assert abs((drawn == 1.0).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 4000)
    assert (drawn.std(0) > 0).all()


def test_sampling_is_without_replacement_and_even() -> None:
    clients = Population(20, 5, [1.0], [1], "fixed", seed=0)
    rounds = [clients.sample(r) for r in range(400)]
    assert all(len(set(chosen)) == 5 for chosen in rounds)
    counts = np.bincount(np.concatenate(rounds), minlength=20)
    assert np.abs(counts / 400 - 0.25).max() < 5 * np.sqrt(0.25 * 0.75 / 400)
    assert Population(4, 4, [1.0], [1], "fixed", seed=0).sample(0) == [0, 1, 2, 3]


def test_bad_data_is_refused_with_the_example_that_is_bad() -> None:
    x, y = torch.zeros(5, 2), torch.tensor([0, 1, 0, 1, 0])
    broken = x.clone()
    broken[3, 1] = float("nan")
    with pytest.raises(DataError, match="training data: inputs of example 3 are not finite"):
        dataset((broken, y), (x, y))
    with pytest.raises(DataError, match="5 inputs and 4 targets"):
        dataset((x, y), (x, y[:4]))
    with pytest.raises(DataError, match="0 inputs"):
        dataset((x[:0], y[:0]), (x, y))
    with pytest.raises(DataError, match="negative"):
        dataset((x, y - 1), (x, y))


MEASURE = """
import resource, sys
import submodel
from submodel.config import parse
from submodel.prepare import prepare
from submodel.run import train
config = parse({"clients": {"count": int(sys.argv[1]), "per_round": 5},
                "data": {"examples_per_client": 20},
                "model": {"name": "mlp", "width": 32}, "train": {"rounds": 3}})
train(config, prepare(config))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_a_million_registered_clients_take_no_more_memory_than_a_thousand() -> None:
    peaks = []
    for count in (1_000, 1_000_000):
        command = [sys.executable, "-c", MEASURE, str(count)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(result.stdout))
    assert peaks[1] <= 1.1 * peaks[0]
