"""Building the small module of a unit cut out of the full one.

The copy shares no storage with the original: every parameter is replaced by its cut while the
module is copied, so weight tying survives and the full weights are never duplicated. Layers that
store their sizes as plain numbers are then corrected from the shapes of their weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from submodel.cut import Cut, copy_part


def _fix_linear(layer: nn.Linear) -> None:
    layer.out_features, layer.in_features = layer.weight.shape


def _fix_conv(layer: _ConvNd) -> None:
    if layer.groups == 1 and not layer.transposed:
        layer.out_channels, layer.in_channels = layer.weight.shape[:2]


def _fix_batch_norm(layer: _BatchNorm) -> None:
    if layer.affine:
        layer.num_features = layer.weight.shape[0]


_FIXES: dict[type[nn.Module], Callable[..., None]] = {
    nn.Linear: _fix_linear,
    _ConvNd: _fix_conv,
    _BatchNorm: _fix_batch_norm,
}


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """What is exchanged: the parameters and the persistent floating-point buffers.

    Such buffers (running statistics) are cut and merged like weights; integer buffers stay local.
    """
    tensors: dict[str, Tensor] = {n: p.detach() for n, p in module.named_parameters()}
    persistent = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name in persistent and buffer.is_floating_point():
            tensors[name] = buffer
    return tensors


def build(module: nn.Module, cut: Cut) -> nn.Module:
    """The sub-model of ``module`` that ``cut`` keeps, as a module of its own.

    >>> from submodel.axes import declare
    >>> from submodel.cut import UnitCut
    >>> import numpy as np
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> table = {"0.weight": ("hidden",), "0.bias": ("hidden",), "2.weight": (None, "hidden")}
    >>> axes = declare(tensors_of(net), table)
    >>> build(net, UnitCut(axes, {"hidden": np.array([1, 5])}))[0]
    Linear(in_features=4, out_features=2, bias=True)
    """
    memo: dict[int, object] = {}
    for name, parameter in module.named_parameters():
        small = copy_part(cut, name, parameter.detach())
        memo[id(parameter)] = nn.Parameter(small, parameter.requires_grad)
    for name, buffer in module.named_buffers():
        memo[id(buffer)] = copy_part(cut, name, buffer)
    built: nn.Module = copy.deepcopy(module, memo)
    for layer in built.modules():
        for kind, fix in _FIXES.items():
            if isinstance(layer, kind):
                fix(layer)
    return built


def load(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Let ``module`` hold these tensors, without copying them."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.data = tensors[name]
        for name, buffer in module.named_buffers():
            if name in tensors:
                buffer.copy_(tensors[name])
