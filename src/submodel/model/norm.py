"""Layers that behave differently in training and evaluation: static norm, scaler, pool.

Running averages of sub-models of different width cannot be merged; HeteroFL (Diao et al. 2021)
therefore keeps none while training and has the server compute them once for evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from submodel.core.errors import SubmodelError
from submodel.model.inputs import Inputs, call

Source = Literal["clients", "test_batch"]
"""Pooled over the clients' examples (HeteroFL), or of each batch that is scored (FedRolex)."""


@dataclass(frozen=True)
class Statistics:
    """The statistics that static batch norm uses in evaluation."""

    source: Source = "clients"
    examples: int | None = None
    """The number of the clients' examples to use; None: all."""


class StaticBatchNorm(nn.Module):
    """Batch norm over dimension 1 without running statistics; see `calibrate`.

    >>> layer = StaticBatchNorm(3)
    >>> abs(layer(torch.randn(8, 3, 4, 4)).mean().item()) < 1e-6
    True
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.statistics: tuple[Tensor, Tensor] | None = None  # never exchanged, never merged
        self.collecting: list[tuple[int, Tensor, Tensor]] | None = None
        self.always_by_batch = False

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in training, by the calibrated statistics otherwise."""
        if self.collecting is not None:
            y, mean, inverse_deviation = torch.native_batch_norm(
                x, self.weight, self.bias, None, None, True, 0.0, self.eps
            )  # computing the variance separately would take longer than a convolution
            variance = inverse_deviation.double().pow_(-2).sub_(self.eps).clamp_(min=0)
            self.collecting.append((x.numel() // x.shape[1], mean, variance))
            return y
        if self.training or self.always_by_batch:
            # torch.batch_norm, as F.batch_norm refuses a last batch of one example
            return torch.batch_norm(
                x, self.weight, self.bias, None, None, True, 0.0, self.eps, False
            )
        if self.statistics is None:
            raise SubmodelError(
                "static batch norm has no statistics: call submodel.model.norm.calibrate first"
            )
        return torch.batch_norm(
            x, self.weight, self.bias, *self.statistics, False, 0.0, self.eps, False
        )


def stop_training(module: nn.Module) -> None:
    """Call ``module.eval()`` unless no layer is in training mode: it visits every layer."""
    if any(layer.training for layer in module.modules()):
        module.eval()


def needs_calibration(module: nn.Module) -> bool:
    """Return whether the module has static batch norms."""
    return any(isinstance(layer, StaticBatchNorm) for layer in module.modules())


def set_by_batch(module: nn.Module, always: bool) -> None:
    """Make static norms use each batch's own statistics in evaluation too, as FedRolex's code does.

    >>> net = nn.Sequential(StaticBatchNorm(1)).eval()
    >>> set_by_batch(net, True)
    >>> net(torch.tensor([[1.0], [3.0]])).round().flatten().tolist()
    [-1.0, 1.0]
    """
    for layer in module.modules():
        if isinstance(layer, StaticBatchNorm):
            layer.always_by_batch = always


class Scaler(nn.Module):
    """Divides by the client's capacity while training; the identity in evaluation (HeteroFL).

    >>> layer = Scaler()
    >>> layer.rate = 0.25
    >>> layer(torch.ones(2)), layer.eval()(torch.ones(2))
    (tensor([4., 4.]), tensor([1., 1.]))
    """

    def __init__(self) -> None:
        super().__init__()
        self.rate = 1.0  # of the whole model; an engine sets it with `set_rate`

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the rate in training."""
        return x / self.rate if self.training and self.rate != 1 else x


def has_scaler(module: nn.Module) -> bool:
    """Return whether training the module depends on the capacity itself, beyond the shapes."""
    return any(isinstance(layer, Scaler) for layer in module.modules())


def set_rate(module: nn.Module, capacity: float) -> None:
    """Set the capacity by which all scalers of a client's module divide."""
    for layer in module.modules():
        if isinstance(layer, Scaler):
            layer.rate = float(capacity)  # a float: the trace takes stored integers for sizes


class Batches(Protocol):
    """Batches of inputs by number: a list, or a sequence that computes them lazily."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Inputs: ...


Spread = Callable[[int, Callable[[int], Tensor]], list[Tensor]]
"""(count, work) -> [work(0), work(1), ...], all of one shape, possibly computed in parallel."""


def in_order(count: int, work: Callable[[int], Tensor]) -> list[Tensor]:
    """Compute all results one after another in this process."""
    return [work(i) for i in range(count)]


@torch.no_grad()
def calibrate(module: nn.Module, batches: Batches, spread: Spread = in_order) -> None:
    """Compute the statistics of every static batch norm over ``batches``.

    Each layer sees what it sees in training (batch-normalised inputs from the layers below) and
    keeps the mean over all examples and the matching total variance.
    """
    set_statistics(module, moments(module, batches, spread))


@torch.no_grad()
def moments(module: nn.Module, batches: Batches, spread: Spread = in_order) -> Tensor:
    """Counts, means and variances of the inputs of every static batch norm, one row per batch.

    `set_statistics` takes the stacked rows of all clients: no example leaves its owner.
    """
    layers = _static_norms(module)
    stop_training(module)
    part = _up_to_last_norm(module)

    def statistics(number: int) -> Tensor:
        for layer in layers:
            layer.collecting = []
        call(part, batches[number])
        return torch.cat([t for layer in layers for t in _batch_row(layer.collecting or [])])

    try:
        return torch.stack(spread(len(batches), statistics))
    finally:
        for layer in layers:
            layer.collecting = None


def _up_to_last_norm(module: nn.Module) -> nn.Module:
    """The module without the layers after its last static norm, if it is a plain chain.

    >>> net = nn.Sequential(nn.Linear(1, 3), StaticBatchNorm(3), nn.ReLU(), nn.Linear(3, 2))
    >>> len(_up_to_last_norm(net))
    2
    """
    if type(module) is not nn.Sequential or module._forward_hooks or module._forward_pre_hooks:
        return module
    positions = [place for place, layer in enumerate(module) if _static_norms(layer)]
    return module[: positions[-1] + 1] if positions else module


def set_statistics(module: nn.Module, rows: Tensor) -> None:
    """Set the statistics of all static batch norms from the pooled rows of `moments`."""
    layers = _static_norms(module)
    for layer, layer_rows in zip(layers, _by_layer(rows, layers), strict=True):
        _, mean, variance = _pool_rows(layer_rows)
        layer.statistics = (mean.to(layer.weight), variance.to(layer.weight))


def pool_moments(module: nn.Module, rows: Tensor) -> Tensor:
    """The rows of `moments` pooled into one row; `set_statistics` gives the same result for it.

    >>> net = nn.Sequential(StaticBatchNorm(1))
    >>> rows = moments(net, [torch.tensor([[1.0]]), torch.tensor([[3.0]])])
    >>> pool_moments(net, rows).round(decimals=6).tolist()
    [[2.0, 2.0, 1.0]]
    """
    parts = [_pool_rows(layer_rows) for layer_rows in _by_layer(rows, _static_norms(module))]
    return torch.cat([torch.cat([n.reshape(1), m, v]) for n, m, v in parts])[None]


def _static_norms(module: nn.Module) -> list[StaticBatchNorm]:
    return [layer for layer in module.modules() if isinstance(layer, StaticBatchNorm)]


def _batch_row(parts: list[tuple[int, Tensor, Tensor]]) -> list[Tensor]:
    """Count, mean and variance of one layer's inputs in one batch, for concatenation."""
    if not parts:
        raise SubmodelError("a static batch norm got no input: the forward pass does not use it")
    rows = [[v.new_full((1,), n), m.to(v), v] for n, m, v in parts]
    if len(rows) == 1:  # nothing to pool
        return rows[0]
    count, mean, variance = _pool_rows(torch.stack([torch.cat(row) for row in rows]))
    return [count.reshape(1), mean, variance]


def _pool_rows(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pool counts, means and variances of several parts."""
    counts, (means, variances) = rows[:, 0], rows[:, 1:].chunk(2, dim=1)
    share = (counts / counts.sum())[:, None]
    mean = (share * means).sum(0)
    return counts.sum(), mean, (share * (variances + (means - mean) ** 2)).sum(0)


def _by_layer(rows: Tensor, layers: Sequence[StaticBatchNorm]) -> Sequence[Tensor]:
    return torch.split(rows, [1 + 2 * len(layer.weight) for layer in layers], dim=1)


def as_batch_norm(module: nn.Module) -> nn.Module:
    """Replace calibrated static norms by torch's own, in place; then an export needs no submodel.

    >>> net = nn.Sequential(StaticBatchNorm(3))
    >>> calibrate(net, [torch.randn(8, 3, 2, 2)])
    >>> as_batch_norm(net)[0]
    BatchNorm2d(3, eps=1e-05, momentum=0.1, affine=True, bias=True, track_running_stats=True)
    """
    for path, layer in list(module.named_modules()):
        if not isinstance(layer, StaticBatchNorm):
            continue
        if layer.statistics is None:
            raise SubmodelError(f"{path}: static batch norm has no statistics: calibrate it first")
        plain = nn.BatchNorm2d(len(layer.weight), eps=layer.eps).to(layer.weight)
        with torch.no_grad():
            plain.weight.copy_(layer.weight)
            plain.bias.copy_(layer.bias)
        plain.running_mean, plain.running_var = layer.statistics
        parent, _, name = path.rpartition(".")
        setattr(module.get_submodule(parent), name, plain.eval())
    return module


class PairwiseMaxPool2d(nn.MaxPool2d):
    """Pooling of two by two pixels, equal to `nn.MaxPool2d(2)` to the bit.

    PyTorch's kernel also stores the index of each maximum. Training needs it, so with gradients
    that kernel runs. Storing it takes longer than the comparisons: on a CPU 2 to 8 times as long in
    channels-last order, 10 to 30 times in the usual one.

    >>> image = torch.arange(15.0).view(1, 3, 5)
    >>> with torch.no_grad():
    ...     PairwiseMaxPool2d(2)(image).tolist()
    [[[6.0, 8.0]]]
    """

    def forward(self, x: Tensor) -> Tensor:
        """Compare rows, then columns."""
        height, width = (size // 2 * 2 for size in x.shape[-2:])
        is_empty = not height or not width  # PyTorch raises the error
        if torch.is_grad_enabled() or x.device.type != "cpu" or is_empty:
            maxima: Tensor = super().forward(x)
            return maxima
        rows = torch.maximum(x[..., 0:height:2, :width], x[..., 1:height:2, :width])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def quicken_pools(module: nn.Module) -> None:
    """Replace every pooling of two by two pixels in the module by `PairwiseMaxPool2d`, in place.

    >>> net = nn.Sequential(nn.MaxPool2d(2), nn.MaxPool2d(3))
    >>> quicken_pools(net)
    >>> [type(layer).__name__ for layer in net]
    ['PairwiseMaxPool2d', 'MaxPool2d']
    """
    for parent in module.modules():
        for name, layer in parent.named_children():
            if type(layer) is nn.MaxPool2d and _is_two_by_two(layer):
                pool = PairwiseMaxPool2d(layer.kernel_size, layer.stride)
                parent.add_module(name, pool.train(layer.training))


def _is_two_by_two(layer: nn.MaxPool2d) -> bool:
    sizes = [layer.kernel_size, layer.stride, layer.padding, layer.dilation]
    pairs = [(size, size) if isinstance(size, int) else tuple(size) for size in sizes]
    is_changed = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return (
        pairs == [(2, 2), (2, 2), (0, 0), (1, 1)]
        and not layer.ceil_mode
        and not layer.return_indices
        and not is_changed
    )
