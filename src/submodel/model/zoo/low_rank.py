"""Low-rank models: every layer as a product of two, so that capacity can be rank instead of width.

A linear layer W (outputs x inputs) becomes ``up`` (outputs x ranks) after ``down`` (ranks x
inputs); a k x k convolution becomes a k x k convolution to the ranks and a 1 x 1 convolution from
them. The ranks are an axis like any other: the trace finds them, and every scheme cuts them.

The idea is that of FedHM (Yao et al. 2021), which gives weak clients factors of low rank; what is
different here is in docs/axes.md. FedPara (Hyeon-Woo et al. 2022) is another parametrisation: the
elementwise product of two such products.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from submodel.errors import ConfigError
from submodel.model.capacity import units_held

_Layer = TypeVar("_Layer", bound=nn.Module)
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Factors(nn.Sequential):
    """A layer as two: ``down`` to the ranks, ``up`` to what the layer puts out."""

    down: nn.Linear | nn.Conv2d
    up: nn.Linear | nn.Conv2d

    def __init__(self, down: nn.Linear | nn.Conv2d, up: nn.Linear | nn.Conv2d) -> None:
        super().__init__(OrderedDict(down=down, up=up))

    @property
    def weight(self) -> Tensor:
        """The weight that the factors make, for code that reads it."""
        up, down = self.up.weight, self.down.weight
        return (up.flatten(1) @ down.flatten(1)).view(len(up), *down.shape[1:])

    @property
    def bias(self) -> Tensor | None:
        """The bias of the layer."""
        return self.up.bias


def factorised(
    module: nn.Module, rank_share: float = 1.0, skip: Collection[str] | None = None
) -> nn.Module:
    """A copy of ``module`` whose layers are `Factors`, from the singular values of its weights.

    A layer keeps ``rank_share``, rounded up, of its full rank min(outputs, inputs k k), the largest
    singular values first, their roots in both factors. So at full rank the copy computes what the
    module does, and the first r ranks of a layer are its best approximation of rank r.

    Factorised are `nn.Linear` and `nn.Conv2d` without groups, unless named by ``skip`` (default:
    the first and the last of them, in the order in which the module holds them: what meets the
    inputs, and the classifier), and unless

    - even one rank is no smaller than the layer: outputs + inputs k k >= outputs inputs k k;
    - it is not all its own: weights that are shared or computed, hooks, a derived type;
    - it is part of a composite layer of torch, such as `nn.MultiheadAttention`, which reads the
      weights of its parts itself.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2))
    >>> factorised(net, rank_share=0.5)[2]
    Factors(
      (down): Linear(in_features=8, out_features=3, bias=False)
      (up): Linear(in_features=3, out_features=6, bias=True)
    )
    """
    if not 0 < rank_share <= 1:
        raise ConfigError([f"rank_share: {rank_share} is not in (0, 1]"])
    low_rank = copy.deepcopy(module)
    layers = dict(layers_of(low_rank, _is_matrix))
    if unknown := [path for path in skip or () if path not in layers]:
        raise ConfigError(
            [f"skip: {path!r} is not one of the layers {', '.join(layers)}" for path in unknown]
        )
    first_and_last = [*layers][:1] + [*layers][-1:]
    skipped_ids = {id(layers[path]) for path in (first_and_last if skip is None else skip)}
    uses = Counter(id(p) for layer in low_rank.modules() for p in layer._parameters.values())
    layers_to_split = {
        id(layer): layer
        for layer in layers.values()
        if id(layer) not in skipped_ids and stands_alone(layer, uses) and _saves(layer.weight)
    }
    if not layers_to_split:
        raise ConfigError(
            [
                f"model.factorised: {type(module).__name__} has no layer to factorise: of its "
                f"{len(layers)} linear layers and ungrouped convolutions the first and the last "
                "stay whole, and so do those that share weights or are too small to gain"
            ]
        )
    pairs = {key: _split(layer, rank_share) for key, layer in layers_to_split.items()}
    return replace_layers(low_rank, pairs)


def replace_layers(module: nn.Module, new_layers: Mapping[int, nn.Module]) -> nn.Module:
    """The module with other layers in place of some, by their identities; it is changed.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> replace_layers(net, {id(net[0]): nn.Identity()})[0]
    Identity()
    """
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if id(child) in new_layers:
                parent._modules[name] = new_layers[id(child)]
    return new_layers.get(id(module), module)


def _is_matrix(layer: nn.Module) -> TypeGuard[nn.Linear | nn.Conv2d]:
    return type(layer) is nn.Linear or (type(layer) is nn.Conv2d and layer.groups == 1)


def layers_of(
    module: nn.Module, is_one: Callable[[nn.Module], TypeGuard[_Layer]], path: str = ""
) -> Iterator[tuple[str, _Layer]]:
    """The layers of a kind, in the order in which the module holds them, not inside torch's own.

    Args:
        module: where to look.
        is_one: whether a layer is of the kind.
        path: of the module.
    """
    if is_one(module):
        yield path, module
    elif isinstance(module, _CONTAINERS) or not type(module).__module__.startswith("torch.nn."):
        for name, child in module._modules.items():  # under every name that it has
            if child is not None:
                yield from layers_of(child, is_one, f"{path}.{name}".lstrip("."))


def stands_alone(layer: nn.Module, uses: Counter[int]) -> bool:
    """Whether nobody else depends on what the layer is made of.

    Args:
        layer: one with a weight and a bias.
        uses: how often each parameter is used, by its identity.
    """
    parameters = layer._parameters
    return (
        parameters.keys() == {"weight", "bias"}
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and all(uses[id(p)] == 1 for p in parameters.values() if p is not None)
    )


def _saves(weight: Tensor) -> bool:
    """Whether one rank is smaller than the layer."""
    outputs, inputs = weight.flatten(1).shape
    return outputs + inputs < outputs * inputs


@torch.no_grad()
def _split(layer: nn.Linear | nn.Conv2d, rank_share: float) -> Factors:
    """The two factors of a layer."""
    weight = layer.weight
    u, values, v = torch.linalg.svd(weight.flatten(1).double(), full_matrices=False)
    rank = units_held(rank_share, len(values))
    roots = values[:rank].sqrt()
    bias = layer.bias is not None
    down: nn.Linear | nn.Conv2d
    up: nn.Linear | nn.Conv2d
    if isinstance(layer, nn.Linear):  # on the meta device: no random number is drawn in vain
        down = nn.Linear(layer.in_features, rank, bias=False, device="meta")
        up = nn.Linear(rank, layer.out_features, bias=bias, device="meta")
    else:
        down = nn.Conv2d(
            layer.in_channels,
            rank,
            layer.kernel_size,  # type: ignore[arg-type] # torch: tuple[int, ...]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            bias=False,
            padding_mode=layer.padding_mode,
            device="meta",
        )
        up = nn.Conv2d(rank, layer.out_channels, 1, bias=bias, device="meta")
    for part, factor in ((down, roots[:, None] * v[:rank]), (up, u[:, :rank] * roots)):
        entries = factor.to(weight.dtype).reshape(part.weight.shape).contiguous()
        part.weight = nn.Parameter(entries, requires_grad=weight.requires_grad)
    up.bias = layer.bias
    return Factors(down, up).train(layer.training)
