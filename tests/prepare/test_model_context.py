"""What data is for is decided once: the model is made for the task whose loss trains it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from submodel.config import Config
from submodel.data import dataset
from submodel.prepare.findings import context_of
from submodel.prepare.objective import make_task
from submodel.tasks.base import task_for

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
