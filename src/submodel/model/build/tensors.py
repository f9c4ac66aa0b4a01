"""The tensors of a module: which are exchanged, which stay local, and how a module takes them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from submodel.model.cut import Cut, lay_out


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


def load(module: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Let ``module`` hold these tensors, without copying those that lie in memory as its own do."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            tensor = tensors[name]
            same = tensor.stride() == parameter.stride() or tensor.dim() < 2
            parameter.data = tensor if same else lay_out(tensor, parameter)
        for name, buffer in module.named_buffers():
            if name in tensors:
                buffer.copy_(tensors[name])


@torch.no_grad()
def load_local(small: nn.Module, module: nn.Module, cut: Cut) -> None:
    """Let ``small`` hold the cut of what is never exchanged: all buffers that `tensors_of` omits.

    A module built for one cut serves another of the same shapes after `load`, and this: rotary
    frequencies, for one, are no weights, but go with the units.

    >>> from submodel.model.build import build_module
    >>> from submodel.model.cut import WHOLE
    >>> net = nn.Linear(2, 2)
    >>> net.register_buffer("scale", torch.tensor([1.0, 2.0]), persistent=False)
    >>> small = build_module(net, WHOLE)
    >>> _ = small.scale.zero_()
    >>> load_local(small, net, WHOLE)
    >>> small.scale
    tensor([1., 2.])
    """
    fill_local(small, {name: cut.part(name, whole) for name, whole in local_of(module).items()})


def local_of(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that are never exchanged."""
    exchanged_names = tensors_of(module).keys()
    return {name: buffer for name, buffer in module.named_buffers() if name not in exchanged_names}


@torch.no_grad()
def fill_local(small: nn.Module, local: Mapping[str, Tensor]) -> None:
    """Let ``small`` hold these buffers."""
    for name, buffer in small.named_buffers():
        if name in local:
            buffer.copy_(local[name])
