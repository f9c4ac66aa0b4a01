"""Rounds by the serial engine, and outputs of a model."""

from __future__ import annotations

import torch

from submodel.algorithm.execution import Engine
from submodel.algorithm.round_statistics import RoundReport
from submodel.algorithm.rounds import OneModel, initial_state, step
from submodel.algorithm.types import Setup, State
from submodel.engines.serial import SerialEngine
from submodel.model.cost import CostModel
from submodel.model.norm import calibrate, needs_calibration


def step_of(
    setup: Setup,
    state: State | None = None,
    engine: Engine | None = None,
    one_model: OneModel | None = None,
) -> tuple[State, RoundReport]:
    """Run a round, by default the first one, with the serial engine."""
    if "costs" not in vars(setup):
        vars(setup)["costs"] = CostModel(setup.module, setup.clients.dataset.example)
    state = state or initial_state(setup)
    engine = engine or SerialEngine(setup)
    return step(setup, state, engine, vars(setup)["costs"], one_model=one_model)


def one_round(setup: Setup, rounds: int = 1) -> dict[str, bytes]:
    state = initial_state(setup)
    for _ in range(rounds):
        state, _ = step_of(setup, state)
    return {name: tensor.numpy().tobytes() for name, tensor in state.tensors.items()}


def output(setup: Setup, module: torch.nn.Module) -> torch.Tensor:
    data = setup.clients.dataset
    kind = next(module.parameters()).dtype
    if needs_calibration(module):
        calibrate(module, [data.train.x.to(kind)])
    with torch.no_grad():
        logits: torch.Tensor = module.eval()(data.test.x.to(kind))
    return logits
