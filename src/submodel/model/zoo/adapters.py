"""Adapters (LoRA, Hu et al. 2022): a frozen model, and small layers beside its own that train.

A linear layer x -> W x + b becomes x -> W x + b + s B A x, with A (ranks x inputs) drawn at random
and B (outputs x ranks) zero at first, so that training begins with the model as it is. The scale
s = alpha / rank is that of the global model, in sub-models too: one that holds some of the ranks
computes what the global model does without the others. W and b are not trained, nor is anything
else: they are sent once (`submodel.model.travel`), and ranks are what capacities cut.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import torch
from torch import Tensor, nn

from submodel.errors import ConfigError
from submodel.model.axes import CLASSES, Axes
from submodel.model.axes.layout import Along
from submodel.model.zoo.low_rank import Factors, layers_of, replace_layers, stands_alone

DEFAULT_RANK = 8
_MOST_SHOWN = 12


class AdapterLayer(nn.Module):
    """A layer that is not trained, with ranks beside it that are.

    Args:
        base: an `nn.Linear`, or the `Conv1D` of transformers, which has its weight transposed.
        rank: how many ranks.
        alpha: s = alpha / rank is what their product counts.
        dropout: the share of the inputs of the ranks that is dropped in training.
    """

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
        """How many ranks it has, in a sub-model those that it holds."""
        return len(self.down.weight)

    @property
    def weight(self) -> Tensor:
        """The weight with the adapter folded in, for code that reads it."""
        change = self.scale * (self.up.weight @ self.down.weight)
        weight: Tensor = self.base.weight  # type: ignore[assignment]
        return weight + (change if isinstance(self.base, nn.Linear) else change.t())

    @property
    def bias(self) -> Tensor | None:
        """The bias of the layer."""
        return self.base.bias  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """What the layer computes, and the ranks beside it."""
        result: Tensor = self.base(x) + self.scale * self.up(self.down(self.dropout(x)))
        return result


def add_adapters(
    module: nn.Module,
    rank: int = DEFAULT_RANK,
    alpha: float | None = None,
    dropout: float = 0.0,
    layers: Collection[str] = (),
) -> nn.Module:
    """A copy of ``module`` in which nothing is trained but adapters beside its linear layers.

    Adapted are `nn.Linear` and the `Conv1D` of transformers, all but the last (the head), unless
    ``layers`` names them. Left out are layers that share weights with others or have hooks, and
    the insides of composite layers of torch, such as `nn.MultiheadAttention`. What else is to be
    trained, as a new head, may be thawed in the copy by ``requires_grad_()``.

    Args:
        module: it is not changed.
        rank: how many ranks an adapter has.
        alpha: s = alpha / rank is what adapters count; None: 2 rank.
        dropout: the share of their inputs that is dropped in training.
        layers: paths, or the last parts of paths, as ``attention.project``; none: as said above.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> adapted = add_adapters(net, rank=2)
    >>> [name for name, p in adapted.named_parameters() if p.requires_grad]
    ['0.down.weight', '0.up.weight']
    """
    if rank < 1:
        raise ConfigError([f"model.adapter_rank: {rank} is not a number of ranks"])
    model_copy = copy.deepcopy(module).requires_grad_(False)
    candidates = dict(layers_of(model_copy, _is_linear))
    uses = Counter(id(p) for layer in model_copy.modules() for p in layer._parameters.values())
    paths = _paths(type(module).__name__, candidates, layers)
    targets = {
        id(candidates[path]): candidates[path]
        for path in paths
        if stands_alone(candidates[path], uses)
    }
    if not targets:
        raise ConfigError(
            [
                f"model.adapters: {type(module).__name__} has no layer to adapt: of its "
                f"{len(candidates)} linear layers the last stays as it is, unless "
                "model.adapter_layers names it, and so do those that share weights"
            ]
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
    """The adapters of a module, by their paths.

    >>> list(adapters_of(add_adapters(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))))
    ['0']
    """
    return {p: layer for p, layer in module.named_modules() if isinstance(layer, AdapterLayer)}


@torch.no_grad()
def fold_adapters(module: nn.Module) -> nn.Module:
    """A copy of ``module`` whose adapters are in the weights beside which they stood.

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
    """Two tensors whose product counts, up (outputs x ranks) and down (ranks x inputs)."""

    up: str
    down: str

    def product(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Outputs x inputs, in float64.

        >>> pair = FactorPair("b", "a")
        >>> pair.product({"b": torch.ones(3, 2), "a": torch.ones(2, 4)}).shape
        torch.Size([3, 4])
        """
        up, down = (tensors[name].flatten(1).double() for name in (self.up, self.down))
        return up @ down


def factor_pairs(module: nn.Module) -> list[FactorPair]:
    """The low-rank products of a module: of factorised layers, and of adapters.

    >>> factor_pairs(add_adapters(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))))
    [FactorPair(up='0.up.weight', down='0.down.weight')]
    """
    return [
        FactorPair(f"{path}.up.weight".lstrip("."), f"{path}.down.weight".lstrip("."))
        for path, layer in module.named_modules()
        if isinstance(layer, Factors | AdapterLayer)
    ]


def only_ranks(module: nn.Module, axes: Axes) -> Axes:
    """The axes of a factorised or adapted module, all but its ranks kept whole: capacity is rank.

    Args:
        module: what `factorised` or `add_adapters` returned.
        axes: all of its axes.

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
    why = f"of a {kind} only ranks are cut"
    return replace(axes, kept_whole=dict.fromkeys(others, why) | dict(axes.kept_whole))


def _paths(name: str, candidates: dict[str, nn.Module], layers: Collection[str]) -> Sequence[str]:
    """The paths that are asked for; all but the last, if none is named."""
    if not layers:
        return list(candidates)[:-1] if len(candidates) > 1 else list(candidates)
    paths: list[str] = []
    problems = []
    for layer_name in layers:
        matches = [path for path in candidates if f".{path}".endswith(f".{layer_name}")]
        paths += matches
        if not matches:
            first_names = ", ".join(list(candidates)[:_MOST_SHOWN]) or "none"
            more = ", ..." if len(candidates) > _MOST_SHOWN else ""
            problems.append(
                f"model.adapter_layers: {layer_name!r} is no linear layer of {name}; those are "
                f"{first_names}{more}"
            )
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(paths))


def _is_linear(layer: nn.Module) -> TypeGuard[nn.Module]:
    return type(layer) is nn.Linear or is_transposed(layer)


def is_transposed(layer: nn.Module) -> bool:
    """Whether a layer is the `Conv1D` of transformers: a linear one, inputs x outputs.

    >>> is_transposed(nn.Linear(2, 1))
    False
    """
    kind = type(layer)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _sizes(layer: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    rows, columns = layer.weight.shape  # type: ignore[misc]
    return (rows, columns) if is_transposed(layer) else (columns, rows)
