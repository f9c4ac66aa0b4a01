"""Loss and accuracy of the global model and of its sub-models on the test part.

In a group of processes each computes some of the batches, and all know the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from submodel.build import build, load
from submodel.cut import WHOLE, Cut, gather
from submodel.data import Examples
from submodel.norm import Spread, calibrate, in_order, needs_calibration
from submodel.rounds import Assignment, Setup, State, cut_of

_BATCH = 200
_FEW_CHANNELS = 8  # below, images in channels-last order are the slower ones on a CPU
EVALUATOR = -1
"""The client number whose cuts stand for a capacity when sub-models are evaluated."""


@dataclass(frozen=True)
class Score:
    """The mean loss, and the share of right answers (None where targets are not labels)."""

    loss: float
    accuracy: float | None


def _layout(module: nn.Module) -> torch.memory_format:
    """The order in memory that the module's kernels want."""
    convs = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    wide = convs and min(layer.out_channels for layer in convs) >= _FEW_CHANNELS
    return torch.channels_last if wide else torch.contiguous_format


class _Inputs:
    """Examples in batches, each moved to the module's device when it is asked for."""

    def __init__(self, x: Tensor, module: nn.Module) -> None:
        self._parts = torch.split(x, _BATCH)
        self._device = next(module.parameters()).device
        self._layout = _layout(module) if x.dim() == 4 else torch.contiguous_format

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, number: int) -> Tensor:
        return self._parts[number].to(self._device).contiguous(memory_format=self._layout)


@torch.no_grad()
def score(module: nn.Module, examples: Examples, setup: Setup, spread: Spread = in_order) -> Score:
    """Evaluate a module as it is."""
    module.eval()
    labelled = setup.federation.dataset.classes is not None
    inputs, targets = _Inputs(examples.x, module), torch.split(examples.y, _BATCH)

    def of_batch(number: int) -> Tensor:
        outputs = module(inputs[number])
        y = targets[number].to(outputs.device)
        right = float((outputs.argmax(1) == y).sum()) if labelled else 0.0
        return torch.tensor([float(setup.loss(outputs, y)) * len(y), right], dtype=torch.float64)

    loss, right = torch.stack(spread(len(inputs), of_batch)).sum(0).tolist()
    return Score(loss / len(examples), right / len(examples) if labelled else None)


def assemble(
    setup: Setup,
    tensors: Mapping[str, Tensor],
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
) -> nn.Module:
    """The module of a cut with the global model's weights, its static norms calibrated.

    Static batch norm takes its statistics from the clients' data, as the server would have them
    computed.
    """
    module = build(setup.module, cut).to(device)
    load(module, {name: tensor.to(device) for name, tensor in gather(cut, tensors).items()})
    if needs_calibration(module):
        module.to(memory_format=_layout(module))  # type: ignore[call-overload]
        calibrate(module, _Inputs(setup.federation.dataset.train.x, module), spread)
        module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return module.eval()


def evaluate(
    setup: Setup,
    state: State,
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
) -> Score:
    """The global model, or a cut of it, on the test part."""
    module = assemble(setup, state.tensors, cut, device, spread)
    module.to(memory_format=_layout(module))  # type: ignore[call-overload]
    return score(module, setup.federation.dataset.test, setup, spread)


def evaluate_capacities(
    setup: Setup,
    state: State,
    whole: Score,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
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
        scores[capacity] = evaluate(setup, state, cut, device, spread)
    return scores
