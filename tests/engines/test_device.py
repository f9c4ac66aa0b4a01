"""Training on another device: its random state is given back, and data that does not fit stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from submodel.data import Examples
from submodel.engines.serial import SerialEngine
from submodel.local.training import train_module
from tests.support.engines import own_setup, setup_of, tasks_of


def test_serial_training_seeds_the_generator_of_a_device_and_puts_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(7)  # stands for the one of a CUDA device in use
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    drawn: list[float] = []

    class Noise(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            drawn.append(float(torch.rand(1, generator=generator)))
            return x

    setup = own_setup(nn.Sequential(nn.Flatten(), Noise(), nn.Linear(64, 10)))
    before = generator.get_state(), torch.random.get_rng_state()
    engine, (task, *_) = SerialEngine(setup), tasks_of(setup)
    runs = []
    for _ in range(2):
        drawn.clear()
        list(engine.run([task]))
        runs.append(list(drawn))
    assert runs[0] == runs[1] != []
    assert torch.equal(before[0], generator.get_state())
    assert torch.equal(before[1], torch.random.get_rng_state())


def test_batches_of_data_that_stays_on_the_host_go_to_the_module() -> None:
    module = nn.Linear(3, 2).to("meta")
    examples = Examples(torch.ones(4, 3), torch.zeros(4))
    seen = []

    def step(_: int, x: Any, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        seen.append((x.device.type, y.device.type, len(x)))
        return torch.zeros(()), [torch.zeros_like(p) for p in module.parameters()]

    work = setup_of("mlp").work
    order = iter([np.arange(3), np.arange(1)])
    train_module(module, examples, order, work, nn.functional.mse_loss, step=step)
    assert seen == [("meta", "meta", 3), ("meta", "meta", 1)]
    assert examples.y.device.type == "cpu"
