"""A task that makes other targets of the data: what that changes, and what it does not."""

from __future__ import annotations

from dataclasses import replace

import torch

from submodel.config import parse
from submodel.data import Examples
from submodel.prepare.setup import prepare
from submodel.tasks.base import TaskContext, TaskKind
from tests.support.common import tiny_images


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
