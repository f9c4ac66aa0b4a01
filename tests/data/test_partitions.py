"""Partitions, capacities and sampling: exact counts, independent of the population in memory."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from submodel.config import parse
from submodel.config.parts import split_data
from submodel.config.setup import prepare
from submodel.core.errors import ConfigError, DataError
from submodel.data import Partition, Population, dataset, digits, limit
from submodel.data.builtin_data import PARTITIONS
from submodel.data.examples import choose_balanced
from submodel.data.partitions import (
    Dirichlet,
    PartitionContext,
    assign_labels,
    check_parts,
    flower_partition,
)

LABELS = digits().train.y.numpy()


def shared_out(
    clients: int, labels_per_client: int | None, examples: int | None, seed: int
) -> Partition:
    """Partition by labels or iid, like in a configuration."""
    partition = PARTITIONS.find("iid" if labels_per_client is None else "labels")
    keys: dict[str, Any] = {"examples_per_client": examples}
    if labels_per_client is not None:
        keys["labels_per_client"] = labels_per_client
    options = partition.options(**keys)
    return partition.make(options, PartitionContext(LABELS, len(LABELS), clients, seed))


@pytest.mark.parametrize("labels_per_client", [None, 1, 3, 10])
def test_every_example_is_used_once(labels_per_client: int | None) -> None:
    partition = shared_out(50, labels_per_client, None, seed=0)
    parts = [partition.indices(client) for client in range(50)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(LABELS)))
    assert all(np.array_equal(part, partition.indices(c)) for c, part in enumerate(parts))
    assert [partition.size(client) for client in range(50)] == [len(part) for part in parts]


@pytest.mark.parametrize("labels_per_client", [1, 2, 3, 7])
def test_each_client_has_exactly_its_labels_in_equal_shards(labels_per_client: int) -> None:
    partition = shared_out(50, labels_per_client, None, seed=1)
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
    partition = shared_out(2, 3, None, seed=0)
    held = [set(LABELS[partition.indices(c)].tolist()) for c in range(2)]
    assert [len(labels) for labels in held] == [3, 3]
    assert not held[0] & held[1]


def test_a_client_may_draw_its_own_examples() -> None:
    partition = shared_out(10**6, 3, 20, seed=0)
    for client in (0, 999_999):
        own = partition.indices(client)
        assert len(own) == len(set(own.tolist())) == partition.size(client) == 20
        assert len(set(LABELS[own].tolist())) == 3


def test_a_partition_that_leaves_a_client_empty_is_refused() -> None:
    for labels_per_client in (None, 3):
        with pytest.raises(ConfigError, match=r"^clients\.count: .*data\.examples_per_client"):
            shared_out(10**6, labels_per_client, None, seed=0)
    with pytest.raises(ConfigError, match=r"^data\.labels_per_client: 11.* 10 "):
        shared_out(10, 11, None, seed=0)


def dirichlet(clients: int, alpha: float, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    split = Dirichlet(LABELS, clients, alpha, seed)
    return [split.indices(client) for client in range(clients)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.integers(1, 80),
    st.floats(1e-320, 1e6),
    st.integers(0, 99),
)
def test_dirichlet_uses_every_example_once_and_leaves_nobody_empty(
    labels: list[int], clients: int, alpha: float, seed: int
) -> None:
    if clients > len(labels):
        with pytest.raises(ConfigError, match=rf"^clients\.count: {clients}.* {len(labels)} "):
            Dirichlet(np.array(labels), clients, alpha, seed)
        return
    split = Dirichlet(np.array(labels), clients, alpha, seed)
    parts = [split.indices(client) for client in range(clients)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert min(map(len, parts)) >= 1
    assert all(np.array_equal(part, np.sort(part)) for part in parts)


def test_a_smaller_alpha_is_more_skewed() -> None:
    def labels_held(alpha: float) -> float:
        seeds = [dirichlet(20, alpha, seed) for seed in range(5)]
        return float(np.mean([len(set(LABELS[part])) for parts in seeds for part in parts]))

    held = [labels_held(alpha) for alpha in (0.01, 0.1, 1.0, 100.0)]
    assert held == sorted(held)
    assert held[0] < 2
    assert held[-1] > 9.9


def test_dirichlet_shares_have_the_variance_of_the_distribution() -> None:
    """A share of Dir(alpha) over n clients has variance (1/n)(1 - 1/n) / (n alpha + 1)."""
    labels, clients, alpha = np.zeros(20_000, dtype=np.int64), 10, 0.5
    shares = np.array(
        [
            [len(split.indices(client)) / len(labels) for client in range(clients)]
            for split in (Dirichlet(labels, clients, alpha, seed) for seed in range(300))
        ]
    )
    wanted = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert np.allclose(shares.sum(1), 1)
    # 3,000 shares of a heavy-tailed law, whose sample variance has an error of about 5 %
    assert abs(shares.var() / wanted - 1) < 0.2


def test_a_large_alpha_is_nearly_even() -> None:
    sizes = [len(part) for part in dirichlet(10, 1e6)]
    assert max(sizes) - min(sizes) <= 10  # rounding, at most one per label


def flower(name: str, clients: int = 20, **options: Any) -> list[np.ndarray[Any, Any]]:
    split = flower_partition(LABELS, clients, name, options, seed=0)
    return [split.indices(client) for client in range(clients)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("IidPartitioner", {}),
        ("LinearPartitioner", {}),
        ("DirichletPartitioner", {"alpha": 0.5, "min_partition_size": 1}),
        ("PathologicalPartitioner", {"num_classes_per_partition": 2}),
    ],
)
def test_partitioners_of_flwr_datasets_give_every_example_once(
    name: str, options: dict[str, Any]
) -> None:
    parts = flower(name, **options)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(LABELS)))
    if name == "PathologicalPartitioner":
        assert all(len(set(LABELS[part])) == 2 for part in parts)


def test_what_a_partitioner_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match=r"^data\.partitioner: 'Iid'.*IidPart"):
        flower("Iid")
    with pytest.raises(ConfigError, match=r"^data\.partitioner_options: .*num_classes_per"):
        flower("PathologicalPartitioner")
    with pytest.raises(ConfigError, match=r"^clients\.count: 20.*NaturalId.* 10 "):
        flower("NaturalIdPartitioner")
    with pytest.raises(ConfigError, match=r"^data\.partitioner: Shard.* 2 .*1,442"):
        flower("ShardPartitioner", num_shards_per_partition=2)
    with pytest.raises(ConfigError, match=r"^data\.partitioner: Size.* 1,342 .*1,442"):
        flower("SizePartitioner", partition_sizes=[5] * 20)
    with pytest.raises(ConfigError, match=r"^data\.partitioner: SizePartitioner: "):
        flower("SizePartitioner", partition_sizes=[5000] * 20)


def test_parts_that_lose_or_repeat_examples_are_refused() -> None:
    parts = [np.array([0, 1]), np.array([1, 3]), np.array([], dtype=np.int64)]
    with pytest.raises(ConfigError) as caught:
        check_parts(parts, 4, "Some")
    wanted = ("1 of 4 .*2$", "1 examples .*1$", "1 clients .*2$")
    for problem, words in zip(caught.value.problems, wanted, strict=True):
        assert re.match(f"data.partitioner: Some .*{words}", problem)


@pytest.mark.parametrize("partition", ["dirichlet", "flwr"])
def test_a_run_can_use_them(partition: str) -> None:
    chosen: dict[str, Any] = {"partition": "dirichlet", "alpha": 0.1}
    if partition == "flwr":
        options = {"num_classes_per_partition": 2}
        chosen = {"partitioner": "PathologicalPartitioner", "partitioner_options": options}
        chosen["partition"] = "flwr"
    setup = prepare(parse({"data": chosen, "model": {"name": "mlp", "width": 8}}))
    total = sum(len(setup.clients.examples(client)) for client in range(50))
    assert total == len(LABELS)


def test_targets_that_are_no_labels_can_only_be_split_at_random() -> None:
    x = torch.zeros(5, 2)
    numbers = dataset((x, torch.zeros(5)), (x, torch.zeros(5)))
    for partition in ("labels", "dirichlet"):
        config = parse({"data": {"partition": partition}})
        words = rf"^data\.partition: {partition!r}.*float32.*\(5,\).*'iid'$"
        with pytest.raises(ConfigError, match=words):
            split_data(config, numbers)


def test_a_part_is_balanced_nested_and_the_same_for_every_seed() -> None:
    small, large = (limit(digits(), count, 7) for count in (105, 300))
    counts = np.bincount(small.train.y)
    assert (counts.min(), counts.max(), counts.sum()) == (10, 11, 105)
    assert len(small.test) == 7
    rows = {row.numpy().tobytes() for row in large.train.x}
    assert all(row.numpy().tobytes() in rows for row in small.train.x)
    rare = np.array([0] * 50 + [1] * 2)
    assert np.bincount(rare[choose_balanced(rare, 10, "data.examples")]).tolist() == [8, 2]
    with pytest.raises(ConfigError, match=r"^data\.test_examples: 356.* 355"):
        limit(digits(), None, 356)


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
    for value in (float("nan"), float("inf"), -float("inf")):
        broken = x.clone()
        broken[3, 1] = value
        with pytest.raises(DataError, match=r"^training data: inputs .*3"):
            dataset((broken, y), (x, y))
    with pytest.raises(DataError, match=r"^test data: 5 .*4"):
        dataset((x, y), (x, y[:4]))
    with pytest.raises(DataError, match=r"^training data: 0 .*0"):
        dataset((x[:0], y[:0]), (x, y))
    with pytest.raises(DataError, match="negative"):
        dataset((x, y - 1), (x, y))


MEASURE = """
import resource, sys
import submodel
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
config = parse({"clients": {"count": int(sys.argv[1]), "per_round": 5},
                "data": {"examples_per_client": 20},
                "model": {"name": "mlp", "width": 32}, "train": {"rounds": 3}})
run_rounds(Training(config, prepare(config)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_million_registered_clients_take_no_more_memory_than_a_thousand() -> None:
    peaks = []
    for count in (1_000, 1_000_000):
        command = [sys.executable, "-c", MEASURE, str(count)]
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(result.stdout))
    assert peaks[1] <= 1.1 * peaks[0]


def test_limiting_to_all_examples_copies_nothing() -> None:
    data = digits()
    same = limit(data, len(data.train), len(data.test))
    assert same.train is data.train
    assert same.test is data.test
    labels = data.train.y.numpy()
    assert choose_balanced(labels, len(labels), "data.examples").tolist() == list(
        range(len(labels))
    )
