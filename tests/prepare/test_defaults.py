"""Defaults that depend on small data: number of clients, and of labels per client."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import submodel
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.core.errors import SubmodelError
from submodel.data import Dataset
from submodel.report.holdings import source_of
from submodel.runs.folder import RunFolder


def small(total: int = 90, classes: int = 2) -> Dataset:
    x = torch.randn(total, 6, generator=torch.Generator().manual_seed(0))
    y, train = torch.arange(total) % classes, total * 4 // 5
    return submodel.dataset((x[:train], y[:train]), (x[train:], y[train:]))


def net(classes: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, classes))


def train(rounds: int, **options: Any) -> submodel.Result:
    return submodel.train(net(), small(), {"train": {"rounds": rounds}}, progress=False, **options)


def test_two_classes_and_few_examples_train_with_nothing_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line reports the data-dependent defaults, with which the run is saved and resumed."""
    with caplog.at_level(logging.WARNING, logger="submodel"):
        train(1, out=tmp_path / "run")
    (line,) = caplog.messages
    for default in ("clients.count = 9", "clients.per_round = 9", "data.labels_per_client = 2"):
        assert default in line
    clients = RunFolder(tmp_path / "run").config().clients
    assert (clients.count, clients.per_round) == (9, 9)
    resumed, whole = train(2, out=tmp_path / "run", resume=True), train(2)
    assert resumed.setup.population.count == 9
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor)
    assert {
        participant.client for participant in source_of(tmp_path / "run").participants(1)
    } == set(range(9))


@pytest.mark.parametrize("partition", ["auto", "labels", "iid", "dirichlet"])
def test_defaults_fit_every_partition(partition: str) -> None:
    data = small(40)
    setup = prepare(parse({"data": {"name": "own", "partition": partition}}), net(), data)
    sizes = [setup.clients.size(client) for client in range(setup.population.count)]
    assert len(sizes) == 4
    assert sum(sizes) == len(data.train)


def test_data_that_is_large_enough_keeps_the_usual_defaults(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = prepare(parse({"data": {"name": "own"}}), net(4), small(1000, classes=4))
    assert (setup.population.count, setup.population.per_round) == (50, 10)
    assert {len(set(setup.clients.examples(c).y.tolist())) for c in range(50)} == {3}
    assert not caplog.messages


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"clients": {"count": 50}}, "clients.count"),
        ({"clients": {"per_round": 20}}, "clients.per_round"),
        ({"data": {"name": "own", "labels_per_client": 3}}, "data.labels_per_client"),
        ({"data": {"name": "own", "partition": "labels", "labels_per_client": 3}}, "data.labels"),
    ],
)
def test_values_that_are_set_are_refused_and_not_changed(
    sections: dict[str, Any], key: str
) -> None:
    with pytest.raises(SubmodelError, match=f"^{key}"):
        prepare(parse({"data": {"name": "own"}, **sections}), net(), small())


def test_too_little_data_is_a_sentence() -> None:
    config = parse({"data": {"name": "own"}})
    with pytest.raises(SubmodelError, match=r"^clients\.count: 2 "):
        prepare(config, net(), small(3))
    with pytest.raises(SubmodelError, match="two classes"):
        prepare(config, net(), small(90, classes=1))
