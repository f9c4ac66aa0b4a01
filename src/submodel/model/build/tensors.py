"""The tensors of a module: which are exchanged, which stay local, and how a module takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm

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


def can_release(module: nn.Module) -> bool:
    """Whether nothing but the tables of its layers is known to hold the module's tensors.

    So it is with layers of torch, of `transformers` and of our own. Other code may keep them in
    lists and closures, and recurrent layers of torch do.

    >>> can_release(nn.Sequential(nn.Linear(2, 2))), can_release(nn.LSTM(2, 2))
    (True, False)
    """
    return all(
        type(layer).__module__.partition(".")[0] in _OPEN_CODE and not isinstance(layer, nn.RNNBase)
        for layer in module.modules()
    )


_OPEN_CODE = {"torch", "transformers", "submodel"}


def release(module: nn.Module) -> dict[str, Tensor]:
    """What is exchanged, taken out of ``module``, which keeps the shapes alone.

    >>> net = nn.Linear(2, 3)
    >>> release(net)["weight"].shape, net.weight.device
    (torch.Size([3, 2]), device(type='meta'))
    """
    tensors = tensors_of(module)
    meta: dict[int, Tensor] = {
        id(p): nn.Parameter(p.detach().to("meta"), p.requires_grad) for p in module.parameters()
    }
    meta |= {id(b): b.to("meta") for name, b in module.named_buffers() if name in tensors}
    for layer in module.modules():
        tables: tuple[dict[str, Any], ...] = (layer._parameters, layer._buffers)
        for table in tables:
            table |= {name: meta.get(id(t), t) for name, t in table.items() if t is not None}
    return tensors


@contextmanager
def without_values() -> Iterator[None]:
    """Parameters of modules that are made in here have shapes alone; buffers have their values.

    So it is with a large model whose values lie in another process's memory.

    >>> with without_values():
    ...     layer = nn.Linear(64, 64)
    >>> layer.weight.device
    device(type='meta')
    """
    register = nn.Module.register_parameter

    def register_empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


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
    settle_spectral_norms(module)


@torch.no_grad()
def settle_spectral_norms(module: nn.Module) -> None:
    """Let every spectral norm of ``module`` divide by the largest singular value of its own matrix.

    It multiplies its matrix by two vectors that it iterates in training. Parts of vectors, and the
    mean of those of several clients, are not those of the matrix at hand.

    >>> net = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2))
    >>> load(net, {name: torch.ones_like(t) for name, t in tensors_of(net).items()})
    >>> round(net.eval().weight.norm().item(), 5)
    1.0
    """
    for layer in module.modules():
        steps: list[Callable[[], object]] = []
        parts: list[nn.Module] = []  # each of them iterates while it is in training mode
        if isinstance(layer, ParametrizationList):
            steps, parts = [layer], [part for part in layer if isinstance(part, _SpectralNorm)]
        elif hooks := [h for h in layer._forward_pre_hooks.values() if isinstance(h, SpectralNorm)]:
            steps, parts = [partial(hook, layer, ()) for hook in hooks], [layer]
        if not parts or any(parameter.is_meta for parameter in layer.parameters()):
            continue
        modes = [(part, part.training) for part in (*parts, *layer.modules())]
        for part, _ in modes:
            part.training = part in parts  # others may draw at random, or keep statistics
        for step in steps * _ITERATIONS:
            step()
        for part, mode in modes:
            part.training = mode


_ITERATIONS = 15
"""As many as torch takes for a new layer."""


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
    if next(small.buffers(), None) is None:
        return
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
