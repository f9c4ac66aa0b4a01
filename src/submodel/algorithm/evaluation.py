"""Loss and metrics of the global model and of its sub-models, on the test part or another.

In a group of processes each computes some of the batches, and all know the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from submodel.algorithm.clients import Model
from submodel.algorithm.dispatch import cut_of, knowledge_of
from submodel.algorithm.scaling import scale_model
from submodel.algorithm.types import Assignment, Setup, State
from submodel.data import Examples
from submodel.errors import DataError
from submodel.model.build import build_module, load
from submodel.model.cut import WHOLE, Cut, gather
from submodel.model.inputs import Inputs, call, map_inputs, split_rows
from submodel.model.norm import (
    Spread,
    always_by_batch,
    in_order,
    moments,
    needs_calibration,
    set_statistics,
)
from submodel.randomness import generator
from submodel.tasks.counting import batch_weights, check_unknown, value_of

_BATCH = 200
_OWN_STATISTICS_BATCH = 50  # as FedRolex's CIFAR test batches were at 3f1485e; 100 at its head
_FEW_CHANNELS = 8  # below, images in channels-last order are the slower ones on a CPU
EVALUATOR = -1
"""The client number whose cuts stand for a capacity when sub-models are evaluated."""


@dataclass(frozen=True)
class Score:
    """The mean loss, and the values of the task's metrics by name."""

    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The share of right answers; None where it is not told."""
        return self.metrics.get("accuracy")

    def entries(self) -> dict[str, float]:
        """All numbers by name."""
        return {"loss": self.loss, **self.metrics}


def _layout(module: nn.Module) -> torch.memory_format:
    """The order in memory that the module's kernels want; if it is channels-last, it stays so."""
    convs = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    wide = convs and min(layer.out_channels for layer in convs) >= _FEW_CHANNELS
    return torch.channels_last if wide else _present_layout(module)


def _present_layout(module: nn.Module) -> torch.memory_format:
    """The order in memory that images have in the module as it is."""
    images = [p for p in module.parameters() if p.dim() == 4]
    last = any(not p.is_contiguous() and _is_channels_last(p) for p in images)
    return torch.channels_last if last else torch.contiguous_format


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


class _Inputs:
    """Examples in batches, each moved to the module's device when it is asked for."""

    def __init__(self, x: Inputs, module: nn.Module, batch: int = _BATCH) -> None:
        self._parts = split_rows(x, batch)
        self._device = next(module.parameters()).device
        self._layout = _layout(module)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, number: int) -> Inputs:
        return map_inputs(self._move, self._parts[number])

    def _move(self, tensor: Tensor) -> Tensor:
        layout = self._layout if tensor.dim() == 4 else torch.contiguous_format
        return tensor.to(self._device).contiguous(memory_format=layout)


@torch.no_grad()
def score(
    module: nn.Module,
    examples: Examples,
    setup: Setup,
    spread: Spread = in_order,
    batch: int = _BATCH,
) -> Score:
    """Evaluate a module as it is; ``batch`` matters only to norms that go by the batch."""
    module.eval()
    metrics = setup.metrics
    inputs, targets = _Inputs(examples.x, module, batch), torch.split(examples.y, batch)

    def of_batch(number: int) -> Tensor:
        outputs = call(module, inputs[number])
        y = targets[number].to(outputs.device)
        sums = [metric.sums(outputs, y).double().cpu() for metric in metrics.values()]
        value = value_of(setup.loss, outputs, y)
        if not value.is_count_known:
            check_unknown(setup.loss, outputs, y, value.mean)
        row = torch.tensor([float(value.mean), value.count], dtype=torch.float64)
        return torch.cat([row, *sums])

    rows = torch.stack(spread(len(inputs), of_batch))
    means, counts = rows[:, :2].t().tolist()
    shares = batch_weights(counts, [len(y) for y in targets])
    if not sum(shares):
        raise DataError(f"none of the targets of these {len(examples)} examples counts in the loss")
    terms = [mean * share if share else 0.0 for mean, share in zip(means, shares, strict=True)]
    loss = float(torch.tensor(terms, dtype=torch.float64).sum()) / sum(shares)
    sums_by_metric = torch.split(rows[:, 2:].sum(0), [m.width for m in metrics.values()])
    values = {
        name: metric.value(sums, loss)
        for (name, metric), sums in zip(metrics.items(), sums_by_metric, strict=True)
    }
    return Score(loss, values)


def assemble_module(
    setup: Setup,
    tensors: Mapping[str, Tensor],
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
    rows: Tensor | None = None,
) -> nn.Module:
    """The module of a cut with the global model's weights, its static norms calibrated.

    Static batch norm takes its statistics from the clients' data, on their devices where it is
    there, whatever statistics the run itself evaluates with; ``rows``: they are known already.
    """
    module = _load_cut(setup, tensors, cut, device)
    if needs_calibration(module):
        if rows is None:
            (rows,) = setup.clients.moments([(tensors, cut)])
        if rows is None:
            rows = moments_of(module, _statistics_inputs(setup), spread)
        set_statistics(module, rows)
    return module.eval()


def moments_of(module: nn.Module, x: Inputs, spread: Spread = in_order) -> Tensor:
    """What the module's static norms see of these inputs, batch by batch."""
    layout_before = _present_layout(module)
    module.to(memory_format=_layout(module))  # type: ignore[call-overload]
    rows = moments(module, _Inputs(x, module), spread)
    module.to(memory_format=layout_before)  # type: ignore[call-overload]
    return rows


def _load_cut(
    setup: Setup, tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> nn.Module:
    module = build_module(setup.module, cut).to(device)
    load(module, {name: tensor.to(device) for name, tensor in gather(cut, tensors).items()})
    return module


def _statistics_inputs(setup: Setup) -> Inputs:
    """The clients' examples that static batch norm takes its statistics from."""
    inputs: Inputs = some(setup.clients.dataset.train, setup.statistics.examples, setup.seed).x
    return inputs


def some(examples: Examples, count: int | None, seed: int) -> Examples:
    """So many of the examples, evenly spread; None: all."""
    if count is None or count >= len(examples):
        return examples
    positions = torch.from_numpy(evenly(len(examples), count, seed))
    return examples.take(positions)


def evenly(total: int, count: int, seed: int) -> NDArray[np.int64]:
    """A random position out of each of ``count`` equal stretches of ``total`` positions.

    Examples often come sorted, or in turns: taking every n-th could take one label alone.

    >>> evenly(12, 4, seed=0) // 3
    array([0, 1, 2, 3])
    """
    borders = np.arange(count + 1) * total // count
    return generator(seed, "statistics").integers(borders[:-1], borders[1:])


def evaluate_model(
    setup: Setup,
    state: State,
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
) -> Score:
    """The global model, or a cut of it, on the test part."""
    test = setup.clients.dataset.test
    return evaluate_parts(setup, state, [test], cut, device, spread)[0]


def evaluate_parts(
    setup: Setup,
    state: State,
    parts: Sequence[Examples],
    cut: Cut = WHOLE,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
    rows: Tensor | None = None,
) -> list[Score]:
    """The global model, or a cut of it, on each of some parts of the data.

    Static batch norm goes by the statistics that the setup names; ``rows``: of `measure_moments`.
    """
    by_test_batch = setup.statistics.source == "test_batch"
    if by_test_batch:
        module = _load_cut(setup, state.tensors, cut, device)
        always_by_batch(module)
    else:
        module = assemble_module(setup, state.tensors, cut, device, spread, rows)
    module.to(memory_format=_layout(module))  # type: ignore[call-overload]
    batch = _OWN_STATISTICS_BATCH if by_test_batch else _BATCH
    return [score(module, part, setup, spread, batch) for part in parts]


def evaluate_capacities(
    setup: Setup,
    state: State,
    whole: Score,
    device: torch.device | str = "cpu",
    spread: Spread = in_order,
    rows: Mapping[float, Tensor | None] = MappingProxyType({}),
) -> dict[float, Score]:
    """The sub-model that each capacity would get in the coming round, on the test part.

    ``whole`` is the global model's score, which capacity 1 has under every scheme, unless the
    channels of its layers are not aligned.
    """
    models = capacity_models(setup, state)
    test = setup.clients.dataset.test
    scores = {}
    for capacity in sorted(set(setup.population.capacities), reverse=True):
        if capacity not in models:
            scores[capacity] = whole
            continue
        tensors, cut = models[capacity]
        capacity_state = replace(state, tensors=tensors)
        known_rows = rows.get(capacity)
        (scores[capacity],) = evaluate_parts(
            setup, capacity_state, [test], cut, device, spread, known_rows
        )
    return scores


def capacity_models(setup: Setup, state: State) -> dict[float, Model]:
    """What each capacity would get in the coming round, but for capacities that get all of it."""
    models: dict[float, Model] = {}
    for capacity in set(setup.population.capacities):
        if capacity < 1 or setup.alignment != "residual":
            where = Assignment(state.round, EVALUATOR, capacity)
            cut = cut_of(setup, where, knowledge=knowledge_of(setup, state))
            models[capacity] = scale_model(setup, state.tensors, capacity), cut
    return models


def measure_moments(setup: Setup, models: Sequence[Model]) -> list[Tensor | None]:
    """What clients on their own devices measure for the static norms of some models, all at once.

    None where there is nothing to measure, or nobody to ask.
    """
    if setup.statistics.source != "clients" or not needs_calibration(setup.module):
        return [None for _ in models]
    return setup.clients.moments(models)
