"""Loss and accuracy of the global model and of its sub-models on the test part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from submodel.build import build, load
from submodel.cut import WHOLE, Cut, gather
from submodel.data import Examples
from submodel.norm import calibrate, needs_calibration
from submodel.rounds import Assignment, Setup, State, cut_of

_BATCH = 500
EVALUATOR = -1
"""The client number whose cuts stand for a capacity when sub-models are evaluated."""


@dataclass(frozen=True)
class Score:
    """The mean loss, and the share of right answers (None where targets are not labels)."""

    loss: float
    accuracy: float | None


def _batches(x: Tensor, device: torch.device) -> Iterator[Tensor]:
    for start in range(0, len(x), _BATCH):
        yield x[start : start + _BATCH].to(device)


@torch.no_grad()
def score(module: nn.Module, examples: Examples, setup: Setup) -> Score:
    """Evaluate a module as it is."""
    device = next(module.parameters()).device
    module.eval()
    loss, right, labelled = 0.0, 0, setup.federation.dataset.classes is not None
    targets = _batches(examples.y, device)
    for x, y in zip(_batches(examples.x, device), targets, strict=True):
        outputs = module(x)
        loss += float(setup.loss(outputs, y)) * len(x)
        if labelled:
            right += int((outputs.argmax(1) == y).sum())
    return Score(loss / len(examples), right / len(examples) if labelled else None)


def assemble(
    setup: Setup,
    tensors: Mapping[str, Tensor],
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """The module of a cut with the global model's weights, its static norms calibrated.

    Static batch norm takes its statistics from the clients' data, as the server would have them
    computed.
    """
    module = build(setup.module, cut).to(device)
    load(module, {name: tensor.to(device) for name, tensor in gather(cut, tensors).items()})
    if needs_calibration(module):
        calibrate(module, _batches(setup.federation.dataset.train.x, torch.device(device)))
    return module.eval()


def evaluate(setup: Setup, state: State, device: torch.device | str = "cpu") -> Score:
    """The global model on the test part."""
    return score(
        assemble(setup, state.tensors, device=device), setup.federation.dataset.test, setup
    )


def evaluate_capacities(
    setup: Setup, state: State, whole: Score, device: torch.device | str = "cpu"
) -> dict[float, Score]:
    """The sub-model that each capacity would get in the coming round, on the test part.

    ``whole`` is the global model's score, which capacity 1 has under every scheme.
    """
    scores = {}
    for capacity in sorted(set(setup.population.capacities), reverse=True):
        if capacity == 1:
            scores[capacity] = whole
            continue
        cut = cut_of(setup, Assignment(state.round, EVALUATOR, capacity))
        module = assemble(setup, state.tensors, cut, device)
        scores[capacity] = score(module, setup.federation.dataset.test, setup)
    return scores
