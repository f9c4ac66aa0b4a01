"""Modules that are lent to an evaluation, and kept for the next one where it has the same shapes.

Building the module of a cut takes as long as a small model's pass over its test part. Modules of
torch and of our own keep nothing of a pass but what is set anew, so these may serve again; others
are built for every evaluation, as are those of larger models: their weights would be kept, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from submodel.algorithm.score import lay_out_images, layout_of
from submodel.model.build import build_module, load, load_local, sharing, to_device
from submodel.model.cut import WHOLE, Cut, gather
from submodel.model.pool import quicken_pools

_MOST_MODULES, _MOST_VALUES = 16, 1 << 20  # of a model; and of the weights that each may keep
_Key = tuple[tuple[tuple[str, int], ...], str]
_SHELVES: WeakKeyDictionary[nn.Module, dict[_Key, nn.Module]] = WeakKeyDictionary()


def load_cut(
    module: nn.Module, tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> nn.Module:
    """The module of a cut with weights of its own.

    Args:
        module: the full one.
        tensors: the full weights.
        cut: what is taken of them.
        device: where it computes.
    """
    small = to_device(build_module(module, cut), device)
    load(small, _parts(tensors, cut, device))
    return small


def share_cut(
    module: nn.Module, tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> nn.Module:
    """As `load_cut`, but the whole model computes with the tensors: nobody may change them.

    Args:
        module: the full one.
        tensors: the full weights.
        cut: what is taken of them.
        device: where it computes.
    """
    if cut is WHOLE:
        return sharing(module, tensors).to(device)
    return load_cut(module, tensors, cut, device)


@contextmanager
def lent_module(
    module: nn.Module, tensors: Mapping[str, Tensor], cut: Cut, device: torch.device | str
) -> Iterator[nn.Module]:
    """The module of a cut for evaluation, laid out as its kernels want; only to be used in here.

    Args:
        module: the full one.
        tensors: the full weights, which nobody may change meanwhile.
        cut: what is taken of them.
        device: where it computes.

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
        small = share_cut(module, tensors, cut, device).eval()
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
