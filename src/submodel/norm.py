"""Static batch norm: batch statistics while training, statistics of the clients' data afterwards.

Running averages of sub-models of different width cannot be merged; HeteroFL (Diao et al. 2021)
therefore keeps none while training and has the server compute them once for evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from submodel.errors import SubmodelError


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

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch in training, by the calibrated statistics otherwise."""
        if self.collecting is not None:
            dims = [d for d in range(x.dim()) if d != 1]
            mean, variance = x.mean(dims), x.var(dims, correction=0)
            self.collecting.append((x.numel() // x.shape[1], mean, variance))
        if self.training or self.collecting is not None:
            # torch.batch_norm, as F.batch_norm refuses a last batch of one example
            return torch.batch_norm(
                x, self.weight, self.bias, None, None, True, 0.0, self.eps, False
            )
        if self.statistics is None:
            raise SubmodelError(
                "static batch norm has no statistics: call submodel.norm.calibrate first"
            )
        return torch.batch_norm(
            x, self.weight, self.bias, *self.statistics, False, 0.0, self.eps, False
        )


def needs_calibration(module: nn.Module) -> bool:
    """Whether the module has static batch norms."""
    return any(isinstance(layer, StaticBatchNorm) for layer in module.modules())


@torch.no_grad()
def calibrate(module: nn.Module, batches: Iterable[Tensor]) -> None:
    """Compute the statistics of every static batch norm over ``batches``.

    Each layer sees what it sees in training (batch-normalised inputs from the layers below) and
    keeps the mean over all examples and the matching total variance.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, StaticBatchNorm)]
    for layer in layers:
        layer.collecting = []
    try:
        module.eval()
        for x in batches:
            module(x)
        for layer in layers:
            parts = layer.collecting or []
            count = sum(n for n, _, _ in parts)
            mean = torch.stack([m * (n / count) for n, m, _ in parts]).sum(0)
            spread = torch.stack([(v + (m - mean) ** 2) * (n / count) for n, m, v in parts]).sum(0)
            layer.statistics = (mean, spread)
    finally:
        for layer in layers:
            layer.collecting = None


def as_batch_norm(module: nn.Module) -> nn.Module:
    """Replace calibrated static norms by torch's own, in place: what is exported needs no submodel.

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
