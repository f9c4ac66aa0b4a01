"""FedAvg on digits against a plain PyTorch loop: same numbers to 1e-6."""

from __future__ import annotations

import copy

import torch
from torch.nn import functional

from submodel.algorithm.rounds import initial_state, step
from submodel.config import parse
from submodel.engines.serial import SerialEngine
from submodel.local.training import batches
from submodel.model.cost import CostModel
from submodel.prepare.setup import prepare

ROUNDS = 3


def test_fedavg_equals_a_plain_loop() -> None:
    config = parse(
        {
            "model": {"name": "mlp", "width": 32},
            "clients": {"count": 12, "per_round": 4, "capacities": [1]},
            "scheme": {"name": "full"},
            "merge": {"weights": "examples"},
            "local": {"epochs": 2, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "clip": 1.0,
                      "absent_labels": "keep"},
        }
    )  # fmt: skip
    setup = prepare(config)
    model = copy.deepcopy(setup.module)
    for r in range(ROUNDS):
        total = 0
        average = [torch.zeros_like(p) for p in model.parameters()]
        for client in setup.population.sample(r):
            data = setup.clients.examples(client)
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(
                local.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3
            )
            for xi in batches(len(data), setup.work, setup.seed, r, client):
                optimizer.zero_grad()
                loss = functional.cross_entropy(local(data.x[xi]), data.y[xi])
                torch.autograd.backward(loss)
                torch.nn.utils.clip_grad_norm_(local.parameters(), 1.0)
                optimizer.step()
            for mean, trained in zip(average, local.parameters(), strict=True):
                mean += len(data) * trained.detach()
            total += len(data)
        with torch.no_grad():
            for parameter, mean in zip(model.parameters(), average, strict=True):
                parameter.copy_(mean / total)

    state = initial_state(setup)
    engine, costs = SerialEngine(setup), CostModel(setup.module, setup.clients.dataset.example)
    for _ in range(ROUNDS):
        state, _ = step(setup, state, engine, costs)
    for name, parameter in model.named_parameters():
        # averages of float32 weights, ours taken in float64
        torch.testing.assert_close(state.tensors[name], parameter.detach(), rtol=0, atol=1e-6)
