"""Scores of a module on examples, the mean loss and the metrics of the task; modules to be scored.

In a group of processes each computes some of the batches, and all know the result. Building the
module of a cut takes as long as a small model's pass over its test part, so modules are lent, and
kept for the next evaluation where it has the same shapes. Modules of torch and of our own keep
nothing of a pass but what is set anew, so these may serve again; others are built for every
evaluation, as are those of larger models: their weights would be kept, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from submodel.algorithm.types import Setup
from submodel.core.errors import DataError
from submodel.data import Examples
from submodel.model.build import build_module, load, load_local, sharing, to_device
from submodel.model.cut import WHOLE, Cut, gather
from submodel.model.inputs import Inputs, map_inputs, split_rows, take_rows
from submodel.model.norm import Spread, in_order, quicken_pools, stop_training
from submodel.tasks.loss import batch_weights, check_unknown, value_of

BATCH = 200
"""How many examples are scored at once."""
_FEW_CHANNELS = 8  # below, images in channels-last order are the slower ones on a CPU


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


def layout_of(module: nn.Module) -> torch.memory_format:
    """The order in memory that the module's kernels want; if it is channels-last, it stays so."""
    convs = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    wide = convs and min(layer.out_channels for layer in convs) >= _FEW_CHANNELS
    return torch.channels_last if wide else present_layout(module)


def lay_out_images(module: nn.Module, layout: torch.memory_format) -> None:
    """Let convolutions hold their weights in this order; other code may view its own as they are.

    >>> lay_out_images(net := nn.Conv2d(2, 2, 2), torch.channels_last)
    >>> _is_channels_last(net.weight)
    True
    """
    for layer in module.modules():
        for parameter in layer.parameters(recurse=False) if isinstance(layer, _ConvNd) else ():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=layout)


def present_layout(module: nn.Module) -> torch.memory_format:
    """The order in memory that images have in the module as it is."""
    images = [p for p in module.parameters() if p.dim() == 4]
    last = any(not p.is_contiguous() and _is_channels_last(p) for p in images)
    return torch.channels_last if last else torch.contiguous_format


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


class InputBatches:
    """So many batches of inputs, each moved to the module's device when it is asked for."""

    def __init__(self, count: int, part: Callable[[int], Inputs], module: nn.Module) -> None:
        self._count, self._part = count, part
        self._device = next(module.parameters()).device
        self._layout = layout_of(module)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Inputs:
        return map_inputs(self._move, self._part(number))

    def _move(self, tensor: Tensor) -> Tensor:
        layout = self._layout if tensor.dim() == 4 else torch.contiguous_format
        return tensor.to(self._device).contiguous(memory_format=layout)


def split_inputs(x: Inputs, module: nn.Module, batch: int = BATCH) -> InputBatches:
    """Inputs in batches, in their order."""
    parts = split_rows(x, batch)
    return InputBatches(len(parts), parts.__getitem__, module)


@torch.no_grad()
def score(
    module: nn.Module,
    examples: Examples,
    setup: Setup,
    spread: Spread = in_order,
    batch: int = BATCH,
) -> Score:
    """Evaluate a module as it is; ``batch`` matters only to norms that go by the batch."""
    stop_training(module)
    inputs, targets = split_inputs(examples.x, module, batch), torch.split(examples.y, batch)
    rows = _rows(setup, module, inputs, targets, spread)
    means, counts = rows[:, :2].t().tolist()
    shares = batch_weights(counts, [len(y) for y in targets])
    if not sum(shares):
        raise DataError(f"none of the targets of these {len(examples)} examples counts in the loss")
    terms = [mean * share if share else 0.0 for mean, share in zip(means, shares, strict=True)]
    losses = torch.tensor(terms, dtype=torch.float64).sum()
    head = torch.stack([losses, torch.tensor(float(sum(shares)), dtype=torch.float64)])
    return score_of_sums(setup, torch.cat([head, rows[:, 2:].sum(0)]))


def score_of_sums(setup: Setup, sums: Tensor) -> Score:
    """What sums over batches come to: of losses, of what they count, and of every metric."""
    loss = float(sums[0]) / float(sums[1])
    sums_by_metric = torch.split(sums[2:], [m.width for m in setup.metrics.values()])
    values = {
        name: metric.value(its_sums, loss)
        for (name, metric), its_sums in zip(setup.metrics.items(), sums_by_metric, strict=True)
    }
    return Score(loss, values)


@torch.no_grad()
def batch_rows(
    setup: Setup,
    module: nn.Module,
    examples: Examples,
    places: Sequence[Tensor],
    spread: Spread = in_order,
) -> Tensor:
    """For each batch the mean loss, what that is the mean of, and the sums of every metric."""
    stop_training(module)
    inputs = InputBatches(len(places), lambda n: take_rows(examples.x, places[n]), module)
    return _rows(setup, module, inputs, [examples.y[rows] for rows in places], spread)


def _rows(
    setup: Setup, module: nn.Module, inputs: InputBatches, targets: Sequence[Tensor], spread: Spread
) -> Tensor:
    outputs_of = setup.scorer(module)

    def of_batch(number: int) -> Tensor:
        outputs = outputs_of(inputs[number])
        y = targets[number].to(outputs.device)
        sums = [metric.sums(outputs, y).double().cpu() for metric in setup.metrics.values()]
        value = value_of(setup.loss, outputs, y)
        if not value.is_count_known:
            check_unknown(setup.loss, outputs, y, value.mean)
        row = torch.tensor([float(value.mean), value.count], dtype=torch.float64)
        return torch.cat([row, *sums])

    return torch.stack(spread(len(inputs), of_batch))


_MOST_MODULES, _MOST_VALUES = 16, 1 << 20  # of a model; and of the weights that each may keep
_Key = tuple[tuple[tuple[str, int], ...], str]
_SHELVES: WeakKeyDictionary[nn.Module, dict[_Key, nn.Module]] = WeakKeyDictionary()


def load_cut(
    module: nn.Module, tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> nn.Module:
    """The module of a cut with weights of its own."""
    small = to_device(build_module(module, cut), device)
    load(small, _parts(tensors, cut, device))
    return small


@contextmanager
def lent_module(
    module: nn.Module, tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> Iterator[nn.Module]:
    """The module of a cut for evaluation, laid out as its kernels want; only to be used in here.

    Nobody may change the full weights meanwhile.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> with lent_module(net, {"0.weight": torch.ones(1, 2)}, WHOLE, "cpu") as first:
    ...     first(torch.ones(1, 2)).tolist()
    [[2.0]]
    >>> with lent_module(net, {"0.weight": torch.zeros(1, 2)}, WHOLE, "cpu") as second:
    ...     second(torch.ones(1, 2)).tolist(), second is first
    ([[0.0]], True)
    """
    shelf = _SHELVES.setdefault(module, {}) if _can_serve_again(module) else {}
    key = (cut.shape_key, str(device))
    small = shelf.pop(key, None)  # nobody else is lent it meanwhile
    if small is None:
        if cut is WHOLE:
            small = sharing(module, tensors).to(device)  # it computes with the tensors themselves
        else:
            small = load_cut(module, tensors, cut, device)
        small.eval()
        lay_out_images(small, layout_of(small))
        quicken_pools(small)
    else:
        load(small, _parts(tensors, cut, device))
        load_local(small, module, cut)
    yield small
    while len(shelf) >= _MOST_MODULES:
        del shelf[next(iter(shelf))]
    shelf[key] = small


def _parts(
    tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> dict[str, Tensor]:
    if cut is WHOLE:
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    return {name: tensor.to(device) for name, tensor in gather(cut, tensors).items()}


def _can_serve_again(module: nn.Module) -> bool:
    """Whether a pass leaves nothing in the module that another pass could see."""
    is_small = sum(parameter.numel() for parameter in module.parameters()) <= _MOST_VALUES
    return is_small and all(map(_is_plain_layer, module.modules()))


def _is_plain_layer(layer: nn.Module) -> bool:
    is_known = type(layer).__module__.startswith(("torch.nn.modules.", "submodel.model."))
    is_changed = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return is_known and not is_changed and not isinstance(layer, nn.RNNBase)
