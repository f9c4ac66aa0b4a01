"""The purpose of data: the task, its loss, the model made for it, and targets of a task."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from submodel.config import Config, parse
from submodel.config.model_facts import context_of
from submodel.config.objective import make_task
from submodel.config.setup import prepare
from submodel.data import Examples, dataset
from submodel.federation.facts import Facts
from submodel.federation.own_data import OwnData
from submodel.tasks.task import TaskContext, TaskKind, task_for
from tests.support.common import tiny_images

TABLE = "".join(f"{n / 60},{n % 7},{'abc'[n % 3]}\n" for n in range(60))


def autoencoder(context: TaskContext) -> TaskKind:
    task = context.kind("autoencoder", torch.nn.functional.mse_loss, ["r2"])
    return replace(task, examples=lambda part: Examples(part.x, part.x.flatten(1)[:, :1]))


def halves(context: TaskContext) -> TaskKind:
    task = context.kind("halves", torch.nn.functional.cross_entropy, ["accuracy"])
    return replace(task, examples=lambda part: Examples(part.x, part.y // 5))


def test_clients_have_what_they_have_whatever_the_task_makes_of_it() -> None:
    sections = {"model": {"name": "mlp", "width": 4}, "clients": {"count": 6, "per_round": 2}}
    plain, numbers, labels = (
        prepare(parse({**sections, "task": {"name": name}}), data=tiny_images(240)).clients
        for name in ("auto", f"{__name__}:autoencoder", f"{__name__}:halves")
    )
    for client in range(6):
        assert plain.indices(client).tolist() == numbers.indices(client).tolist()
        assert plain.indices(client).tolist() == labels.indices(client).tolist()
    classes = [clients.dataset.classes for clients in (plain, numbers, labels)]
    assert classes == [10, None, 2]
    assert torch.equal(labels.dataset.train.y, plain.dataset.train.y // 5)


def test_whole_numbers_are_numbers_where_a_regression_is_asked_for(tmp_path: Path) -> None:
    """Here, and on a device that simulates a client."""
    (tmp_path / "table.csv").write_text(f"x,count,who\n{TABLE}")
    data = {"name": f"csv:{tmp_path / 'table.csv'}", "target": "count", "client": "who"}
    clients = {"count": 3, "per_round": 2}
    sections = {"data": data, "model": {"name": "mlp", "width": 4}, "clients": clients}
    setup = prepare(parse({**sections, "task": {"name": "regression"}}))
    assert setup.clients.dataset.classes is None
    assert setup.clients.examples(1).y.shape == (setup.clients.size(1), 1)
    assert prepare(parse(sections)).clients.dataset.classes == 7
    config = parse({**sections, "task": {"name": "regression"}})
    part = OwnData(part=1).read(config, Facts.of(setup.clients.dataset, setup.module))
    assert torch.equal(part.y, setup.clients.examples(1).y)


def test_a_device_that_plays_a_client_has_what_that_client_has() -> None:
    clients = {"count": 6, "per_round": 2}
    sections = {"model": {"name": "mlp", "width": 4}, "clients": clients, "data": {"examples": 90}}
    config = parse({**sections, "task": {"name": f"{__name__}:halves"}})
    setup = prepare(config)
    part = OwnData(part=4).read(config, Facts.of(setup.clients.dataset, setup.module))
    assert torch.equal(part.x, setup.clients.examples(4).x)
    assert torch.equal(part.y, setup.clients.examples(4).y)


ROWS = torch.arange(12).reshape(4, 3)
CASES: dict[str, tuple[Tensor, Tensor, str, tuple[int, int | None, str | None]]] = {
    "labels": (ROWS.float(), torch.tensor([0, 1, 2, 0]), "classification",
               (3, None, "classification")),
    "labels of tokens": (ROWS, torch.tensor([0, 1, 2, 0]), "classification",
                         (3, 12, "classification")),
    "next tokens": (ROWS, ROWS + 1, "language", (13, 13, "language")),
    "labels of places": (ROWS.float(), ROWS, "language", (1, None, None)),
    "numbers": (ROWS.float(), ROWS.float()[:, :2], "regression", (2, None, "regression")),
    "numbers of tokens": (ROWS, ROWS.float()[:, :1], "regression", (1, 12, "regression")),
    "pairs of whole numbers": (ROWS.float(), ROWS[:, :2], "classification", (1, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_model_and_loss_are_for_one_task(what: str) -> None:
    x, y, task, expected = CASES[what]
    data = dataset((x, y), (x, y))
    assert task_for(data) == make_task(Config(), data).name == task
    context = context_of(data)
    assert (context.classes, context.vocabulary, context.task) == expected
    assert context.task in (task, None)
