"""Low-rank models, where capacity is rank instead of width: factorised layers, and adapters.

A linear layer W (outputs x inputs) becomes ``up`` (outputs x ranks) after ``down`` (ranks x
inputs); a k x k convolution becomes a k x k convolution to the ranks and a 1 x 1 convolution from
them. The ranks are an axis like any other: the trace finds them, and every scheme cuts them.

The idea is from FedHM (Yao et al. 2021), which gives weak clients factors of low rank; docs/axes.md
lists the differences. FedPara (Hyeon-Woo et al. 2022) is another parametrisation: the elementwise
product of two such products.

Adapters (LoRA, Hu et al. 2022) are small trained layers beside those of a frozen model. A linear
layer x -> W x + b becomes x -> W x + b + s B A x, with A (ranks x inputs) drawn at random and B
(outputs x ranks) zero at first, so that training starts from the given model. The scale
s = alpha / rank is that of the global model, in sub-models too: a sub-model with some of the ranks
computes the global model without the other ranks. W, b and all other tensors are frozen: they are
sent once (`submodel.model.travel`), and capacities cut ranks.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard, TypeVar

import torch
from torch import Tensor, nn

from submodel.core.errors import ConfigError, refuse
from submodel.model.axes import CLASSES, Axes
from submodel.model.axes.declare import units_held
from submodel.model.axes.layout import Along

_Layer = TypeVar("_Layer", bound=nn.Module)
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Factors(nn.Sequential):
    """A layer as a product of two: ``down`` from inputs to ranks, ``up`` from ranks to outputs."""

    down: nn.Linear | nn.Conv2d
    up: nn.Linear | nn.Conv2d

    def __init__(self, down: nn.Linear | nn.Conv2d, up: nn.Linear | nn.Conv2d) -> None:
        super().__init__(OrderedDict(down=down, up=up))

    @property
    def weight(self) -> Tensor:
        """The product of the factors, for code that reads a weight."""
        up, down = self.up.weight, self.down.weight
        return (up.flatten(1) @ down.flatten(1)).view(len(up), *down.shape[1:])

    @property
    def bias(self) -> Tensor | None:
        """The bias of the layer."""
        return self.up.bias


def factorised(
    module: nn.Module, rank_share: float = 1.0, skip: Collection[str] | None = None
) -> nn.Module:
    """Return a copy of ``module`` whose layers are `Factors`, by singular value decomposition.

    A layer keeps ``rank_share``, rounded up, of its full rank min(outputs, inputs k k), the largest
    singular values first, with their square roots in both factors. At full rank the copy computes
    the same function as the module, and the first r ranks of a layer are its best approximation of
    rank r.

    Layers of type `nn.Linear` and `nn.Conv2d` without groups are factorised, except those named by
    ``skip`` (default: the first and the last of them in the order of the module, usually the input
    layer and the classifier), and except

    - layers for which one rank is no smaller: outputs + inputs k k >= outputs inputs k k;
    - layers with shared or computed weights, hooks or a derived type;
    - parts of a composite layer of torch, such as `nn.MultiheadAttention`, which reads the weights
      of its parts directly.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2))
    >>> factorised(net, rank_share=0.5)[2]
    Factors(
      (down): Linear(in_features=8, out_features=3, bias=False)
      (up): Linear(in_features=3, out_features=6, bias=True)
    )
    """
    if not 0 < rank_share <= 1:
        raise ConfigError(f"rank_share: {rank_share} is not in (0, 1]")
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
        if id(layer) not in skipped_ids
        and stands_alone(layer, uses)
        and sum(layer.weight.flatten(1).shape) < layer.weight.numel()  # one rank is smaller
    }
    if not layers_to_split:
        raise ConfigError(
            f"model.factorised: {type(module).__name__} has no layer to factorise: of its "
            f"{len(layers)} linear layers and ungrouped convolutions, the first and the last are "
            "left out, and so are layers that share weights or are too small"
        )
    pairs = {key: _split(layer, rank_share) for key, layer in layers_to_split.items()}
    return replace_layers(low_rank, pairs)


def replace_layers(module: nn.Module, new_layers: Mapping[int, nn.Module]) -> nn.Module:
    """Replace layers of the module, given by their ids, in place."""
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
    """Iterate over the layers of a kind in the order of the module, not inside layers of torch."""
    if is_one(module):
        yield path, module
    elif isinstance(module, _CONTAINERS) or not type(module).__module__.startswith("torch.nn."):
        for name, child in module._modules.items():  # a shared layer under each of its names
            if child is not None:
                yield from layers_of(child, is_one, f"{path}.{name}".lstrip("."))


def stands_alone(layer: nn.Module, uses: Counter[int]) -> bool:
    """Return whether the layer has no shared weights, no computed weights and no hooks."""
    parameters = layer._parameters
    return (
        parameters.keys() == {"weight", "bias"}
        and not layer._forward_hooks
        and not layer._forward_pre_hooks
        and all(uses[id(p)] == 1 for p in parameters.values() if p is not None)
    )


@torch.no_grad()
def _split(layer: nn.Linear | nn.Conv2d, rank_share: float) -> Factors:
    weight = layer.weight
    u, values, v = torch.linalg.svd(weight.flatten(1).double(), full_matrices=False)
    rank = units_held(rank_share, len(values))
    roots = values[:rank].sqrt()
    bias = layer.bias is not None
    down: nn.Linear | nn.Conv2d
    up: nn.Linear | nn.Conv2d
    if isinstance(layer, nn.Linear):  # on the meta device no initial values are drawn
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


DEFAULT_RANK = 8
_MOST_SHOWN = 12


class AdapterLayer(nn.Module):
    """A frozen layer with a trained low-rank layer beside it."""

    base: nn.Module
    down: nn.Linear
    up: nn.Linear

    def __init__(self, base: nn.Module, rank: int, alpha: float, dropout: float = 0.0) -> None:
        super().__init__()
        inputs, outputs = _sizes(base)
        weight: Tensor = base.weight  # type: ignore[assignment]
        self.base = base.requires_grad_(False)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()  # stacks take none, not 0
        kind = {"dtype": weight.dtype, "device": weight.device}
        self.down = nn.Linear(inputs, rank, bias=False, **kind)  # drawn as peft draws it
        self.up = nn.Linear(rank, outputs, bias=False, **kind)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / rank

    @property
    def rank(self) -> int:
        """The number of ranks; in a sub-model, of those that it holds."""
        return len(self.down.weight)

    @property
    def weight(self) -> Tensor:
        """The weight with the adapter folded in, for code that reads a weight."""
        change = self.scale * (self.up.weight @ self.down.weight)
        weight: Tensor = self.base.weight  # type: ignore[assignment]
        return weight + (change if isinstance(self.base, nn.Linear) else change.t())

    @property
    def bias(self) -> Tensor | None:
        """The bias of the layer."""
        return self.base.bias  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """Add the output of the adapter to that of the layer."""
        result: Tensor = self.base(x) + self.scale * self.up(self.down(self.dropout(x)))
        return result


def add_adapters(
    module: nn.Module,
    rank: int = DEFAULT_RANK,
    alpha: float | None = None,
    dropout: float = 0.0,
    layers: Collection[str] = (),
) -> nn.Module:
    """Return a copy of ``module`` in which only adapters beside its linear layers are trained.

    Adapters are added to `nn.Linear` and the `Conv1D` of transformers, except the last one (the
    head), unless ``layers`` names others. Layers that share weights or have hooks, and the parts of
    composite layers of torch such as `nn.MultiheadAttention`, get none. To train other parts of the
    copy, for example a new head, call ``requires_grad_()`` on them.

    Args:
        module: the model; it is not changed.
        rank: the number of ranks of an adapter.
        alpha: adapters are scaled by s = alpha / rank; None: 2 rank.
        dropout: the fraction of an adapter's inputs dropped in training.
        layers: paths, or the last parts of paths such as ``attention.project``; empty: see above.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> adapted = add_adapters(net, rank=2)
    >>> [name for name, p in adapted.named_parameters() if p.requires_grad]
    ['0.down.weight', '0.up.weight']
    """
    if rank < 1:
        raise ConfigError(f"model.adapter_rank: {rank} is not a positive number of ranks")
    model_copy = copy.deepcopy(module).requires_grad_(False)
    linear_layers = dict(layers_of(model_copy, _is_linear))
    uses = Counter(id(p) for layer in model_copy.modules() for p in layer._parameters.values())
    paths = _paths(type(module).__name__, linear_layers, layers)
    targets = {
        id(linear_layers[path]): linear_layers[path]
        for path in paths
        if stands_alone(linear_layers[path], uses)
    }
    if not targets:
        raise ConfigError(
            f"model.adapters: {type(module).__name__} has no layer to adapt: of its "
            f"{len(linear_layers)} linear layers, the last is left out unless "
            "model.adapter_layers names it, and so are layers that share weights"
        )
    scale = 2 * rank if alpha is None else alpha
    adapters = {key: AdapterLayer(x, rank, scale, dropout) for key, x in targets.items()}
    for key, layer in targets.items():
        adapters[key].train(layer.training)
    inside = {
        id(layer) for adapter in adapters_of(model_copy).values() for layer in adapter.children()
    }
    return replace_layers(model_copy, {k: a for k, a in adapters.items() if k not in inside})


def adapters_of(module: nn.Module) -> dict[str, AdapterLayer]:
    """The adapters of a module, by their paths."""
    return {p: layer for p, layer in module.named_modules() if isinstance(layer, AdapterLayer)}


@torch.no_grad()
def fold_adapters(module: nn.Module) -> nn.Module:
    """Return a copy of ``module`` whose adapters are added to the frozen weights.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    >>> fold_adapters(add_adapters(net))
    Sequential(
      (0): Linear(in_features=4, out_features=8, bias=True)
      (1): Linear(in_features=8, out_features=2, bias=True)
    )
    """
    plain = copy.deepcopy(module)
    layers = {id(layer): layer for layer in adapters_of(plain).values()}
    for layer in layers.values():
        layer.base.weight.copy_(layer.weight)  # type: ignore[operator]
    return replace_layers(plain, {key: layer.base for key, layer in layers.items()})


@dataclass(frozen=True)
class FactorPair:
    """The names of two factors of a weight, up (outputs x ranks) and down (ranks x inputs)."""

    up: str
    down: str

    def product(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The product (outputs x inputs) in float64."""
        up, down = (tensors[name].flatten(1).double() for name in (self.up, self.down))
        return up @ down


def factor_pairs(module: nn.Module) -> list[FactorPair]:
    """The low-rank products of a module, in factorised layers and in adapters.

    >>> factor_pairs(add_adapters(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))))
    [FactorPair(up='0.up.weight', down='0.down.weight')]
    """
    return [
        FactorPair(f"{path}.up.weight".lstrip("."), f"{path}.down.weight".lstrip("."))
        for path, layer in module.named_modules()
        if isinstance(layer, Factors | AdapterLayer)
    ]


def only_ranks(module: nn.Module, axes: Axes) -> Axes:
    """The axes of a factorised or adapted module with all except ranks kept whole.

    >>> import torch
    >>> from submodel.model.axes import trace
    >>> from submodel.model.zoo import factorised
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 2))
    >>> low = factorised(net)
    >>> only_ranks(low, trace(low, torch.ones(1, 4))).cut_by_capacity
    {'2.down': 6}
    """
    ranks = set()
    for pair in factor_pairs(module):
        layouts = axes.layouts.get(pair.down)
        if layouts is not None and isinstance(layouts[0], Along):
            ranks.add(layouts[0].axis)
    others = [axis for axis in axes.sizes if axis not in ranks and axis != CLASSES]
    kind = "model with adapters" if adapters_of(module) else "factorised model"
    why = f"only the ranks of a {kind} are cut"
    return replace(axes, kept_whole=dict.fromkeys(others, why) | dict(axes.kept_whole))


def _paths(name: str, named: dict[str, nn.Module], layers: Collection[str]) -> Sequence[str]:
    """The paths of the named layers; if none is named, all except the last."""
    if not layers:
        return list(named)[:-1] if len(named) > 1 else list(named)
    paths: list[str] = []
    problems = []
    for layer_name in layers:
        matches = [path for path in named if f".{path}".endswith(f".{layer_name}")]
        paths += matches
        if not matches:
            first_names = ", ".join(list(named)[:_MOST_SHOWN]) or "none"
            more = ", ..." if len(named) > _MOST_SHOWN else ""
            problems.append(
                f"model.adapter_layers: {layer_name!r} is not a linear layer of {name}; linear "
                f"layers are {first_names}{more}"
            )
    refuse(problems)
    return list(dict.fromkeys(paths))


def _is_linear(layer: nn.Module) -> TypeGuard[nn.Module]:
    return type(layer) is nn.Linear or is_transposed(layer)


def is_transposed(layer: nn.Module) -> bool:
    """Return whether a layer is transformers' `Conv1D`: linear with a weight inputs x outputs."""
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _sizes(layer: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    rows, columns = layer.weight.shape  # type: ignore[misc]
    return (rows, columns) if is_transposed(layer) else (columns, rows)
