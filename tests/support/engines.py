"""Comparison of the updates of both local engines on the same tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state, plan
from submodel.algorithm.types import Setup, Task, Update
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.data import Dataset, dataset
from submodel.engines import EngineContext
from submodel.engines.batched.engine import BatchedEngine
from submodel.engines.select import Local
from submodel.engines.serial import SerialEngine
from tests.support.common import WIDTHS, tiny_images

TOLERANCE = 1e-5
"""For float32: sums of some hundred terms of size 1 in another order, over a few steps."""
EXACT_TOLERANCE = 1e-10  # for float64


def setup_of(
    model: str | nn.Module = "cnn",
    images: Dataset | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
    /,
    **sections: dict[str, Any],
) -> Setup:
    """Make seven clients with 8 to 9 examples of three labels each, in batches of 4: 4, 4 and 0 or
    1.
    """
    config: dict[str, dict[str, Any]] = {
        "data": {"partition": "labels", "labels_per_client": 3},
        "clients": {"count": 7, "per_round": 7, "capacities": [1, 0.5]},
        "local": {"lr": 0.05, "batch_size": 4, "absent_labels": "keep"},
    }
    if isinstance(model, str):
        config["model"] = {"name": model, "width": WIDTHS[model]}
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section}
    own = None if isinstance(model, str) else model
    if config["data"].get("partition") != "labels":
        config["data"].pop("labels_per_client", None)
    return prepare(parse(config), own, images or tiny_images(), loss=loss)


def doubled(images: Dataset) -> Dataset:
    train, test = images.train, images.test
    return dataset((train.x.double(), train.y), (test.x.double(), test.y))


def tasks_of(setup: Setup, round_: int = 0) -> Iterator[Task]:
    state = replace(initial_state(setup), round=round_)
    dispatcher = Dispatcher(setup, state, setup.work)
    return (dispatcher.task(a) for a in plan(setup, 0))


def updates(engine: Engine, setup: Setup) -> dict[int, Update]:
    found = engine.run(tasks_of(setup))
    return {u.assignment.client: u for u in found if isinstance(u, Update)}


def native_engine(setup: Setup, batching: Literal["auto", "always"] = "auto") -> Any:
    """Make stacks with native kernels."""
    options = Local.Options(batching=batching, kernels="native")
    return Local.configured(options, EngineContext(setup, torch.device("cpu")))


def assert_equal_updates(setup: Setup, tolerance: float = TOLERANCE) -> None:
    expected, found = updates(SerialEngine(setup), setup), updates(BatchedEngine(setup), setup)
    assert expected.keys() == found.keys()
    for client, update in expected.items():
        other = found[client]
        assert (other.examples, other.examples_used) == (update.examples, update.examples_used)
        assert other.loss == pytest.approx(update.loss, rel=tolerance, abs=tolerance)
        assert other.tensors.keys() == update.tensors.keys()
        for name, tensor in update.tensors.items():
            torch.testing.assert_close(other.tensors[name], tensor, rtol=tolerance, atol=tolerance)


def own_setup(module: nn.Module, **sections: Any) -> Setup:
    scheme = {"granularity": "coordinate"}
    return setup_of(module, scheme=scheme, **sections)
