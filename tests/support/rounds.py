"""Rounds by the serial engine, and what a model computes."""

from __future__ import annotations

import torch

from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Setup
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.model.norm import calibrate, needs_calibration


def one_round(setup: Setup, rounds: int = 1) -> dict[str, bytes]:
    state = initial_state(setup)
    costs = CostModel(setup.module, setup.clients.dataset.example)
    for _ in range(rounds):
        state, _ = step(setup, state, SerialEngine(setup), costs)
    return {name: tensor.numpy().tobytes() for name, tensor in state.tensors.items()}


def output(setup: Setup, module: torch.nn.Module) -> torch.Tensor:
    data = setup.clients.dataset
    kind = next(module.parameters()).dtype
    if needs_calibration(module):
        calibrate(module, [data.train.x.to(kind)])
    with torch.no_grad():
        logits: torch.Tensor = module.eval()(data.test.x.to(kind))
    return logits
