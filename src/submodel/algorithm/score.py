"""Scores of a module on examples: the mean loss and the metrics of the task.

In a group of processes, each computes some of the batches, and all get the result. Building the
module of a cut takes as long as a small model's pass over its test part, so modules are cached for
the next evaluation of the same shapes. This needs layers of torch or of this package, which keep
nothing of a pass that the next one does not set again; modules with other layers are built for
every evaluation, as are large ones, whose weights would stay in memory.
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
"""Number of examples that are scored at once."""
_FEW_CHANNELS = 8  # with fewer, images in channels-last order are slower on a CPU


@dataclass(frozen=True)
class Score:
    """The mean loss, and the values of the task's metrics by name."""

    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """The accuracy; None if it is not a metric of the task."""
        return self.metrics.get("accuracy")

    def entries(self) -> dict[str, float]:
        """Return loss and metrics by name."""
        return {"loss": self.loss, **self.metrics}


def layout_of(module: nn.Module) -> torch.memory_format:
    """Return the best memory order for a module's kernels; channels-last stays so."""
    convs = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    wide = convs and min(layer.out_channels for layer in convs) >= _FEW_CHANNELS
    return torch.channels_last if wide else present_layout(module)


def lay_out_images(module: nn.Module, layout: torch.memory_format) -> None:
    """Store the weights of convolutions in this order; other layers may view theirs, so keep them.

    >>> lay_out_images(net := nn.Conv2d(2, 2, 2), torch.channels_last)
    >>> _is_channels_last(net.weight)
    True
    """
    for layer in module.modules():
        for parameter in layer.parameters(recurse=False) if isinstance(layer, _ConvNd) else ():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=layout)


def present_layout(module: nn.Module) -> torch.memory_format:
    """Return the memory order of images in a module as it is."""
    images = [p for p in module.parameters() if p.dim() == 4]
    last = any(not p.is_contiguous() and _is_channels_last(p) for p in images)
    return torch.channels_last if last else torch.contiguous_format


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


class InputBatches:
    """Batches of inputs; each moves to the module's device when it is read."""

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
    """Split inputs into batches, in their order."""
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
    """Evaluate a module as it is; ``batch`` matters only to norms with statistics of the batch."""
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
    """Compute a score from sums over batches: of losses, of their counts, and of every metric."""
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
    """Return for each batch the mean loss, its count, and the sums of every metric."""
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


_MOST_MODULES, _MOST_VALUES = 16, 1 << 20  # per model; and weights of a cached module
_Key = tuple[tuple[tuple[str, int], ...], str]
_CACHED_MODULES: WeakKeyDictionary[nn.Module, dict[_Key, nn.Module]] = WeakKeyDictionary()


def load_cut(
    module: nn.Module, tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> nn.Module:
    """Build the module of a cut, with weights of its own."""
    small = to_device(build_module(module, cut), device)
    load(small, _parts(tensors, cut, device))
    return small


@contextmanager
def cached_module(
    module: nn.Module, tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> Iterator[nn.Module]:
    """Yield the module of a cut for evaluation, in the best memory order, from a cache if possible.

    It is valid in this context only. The full weights must not change meanwhile.

    >>> net = nn.Sequential(nn.Linear(2, 1, bias=False))
    >>> with cached_module(net, {"0.weight": torch.ones(1, 2)}, WHOLE, "cpu") as first:
    ...     first(torch.ones(1, 2)).tolist()
    [[2.0]]
    >>> with cached_module(net, {"0.weight": torch.zeros(1, 2)}, WHOLE, "cpu") as second:
    ...     second(torch.ones(1, 2)).tolist(), second is first
    ([[0.0]], True)
    """
    cached = _CACHED_MODULES.setdefault(module, {}) if _can_serve_again(module) else {}
    key = (cut.shape_key, str(device))
    small = cached.pop(key, None)  # so that a nested call builds another module
    if small is None:
        if cut is WHOLE:
            small = sharing(module, tensors).to(device)  # it uses the tensors themselves
        else:
            small = load_cut(module, tensors, cut, device)
        small.eval()
        lay_out_images(small, layout_of(small))
        quicken_pools(small)
    else:
        load(small, _parts(tensors, cut, device))
        load_local(small, module, cut)
    yield small
    while len(cached) >= _MOST_MODULES:
        del cached[next(iter(cached))]
    cached[key] = small


def _parts(
    tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> dict[str, Tensor]:
    if cut is WHOLE:
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    return {name: tensor.to(device) for name, tensor in gather(cut, tensors).items()}


def _can_serve_again(module: nn.Module) -> bool:
    """Return whether a pass leaves no trace in the module."""
    is_small = sum(parameter.numel() for parameter in module.parameters()) <= _MOST_VALUES
    return is_small and all(map(_is_plain_layer, module.modules()))


def _is_plain_layer(layer: nn.Module) -> bool:
    is_known = type(layer).__module__.startswith(("torch.nn.modules.", "submodel.model."))
    is_changed = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return is_known and not is_changed and not isinstance(layer, nn.RNNBase)
