"""Scales that a sub-model stores as numbers, where the model of its config would store others.

A sub-model keeps the full model's, such as 1/sqrt(size of a head); a config gives that of the small
head. The quotient of the two goes into a layer, most often that of the queries: which one is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

ScaleFactors = dict[str, float]
"""By the path of a module: what the sub-model's scale is times that of the config's model."""


def stored_floats(layer: nn.Module) -> dict[str, float]:
    """The attributes of one module that may be scales.

    >>> net = nn.Identity()
    >>> net.scaling = 0.5
    >>> stored_floats(net)
    {'scaling': 0.5}
    """
    return {name: value for name, value in vars(layer).items() if type(value) is float}


def differing_scales(small: nn.Module, model: nn.Module) -> dict[str, ScaleFactors]:
    """The scales that differ, by the name of the attribute.

    Args:
        small: the sub-model.
        model: of the same architecture, as a config makes it.
    """
    factors: dict[str, ScaleFactors] = {}
    layers = dict(model.named_modules())
    for path, layer in small.named_modules():
        other_values = stored_floats(layers[path])
        for name, value in stored_floats(layer).items():
            other = other_values.get(name)
            if other and other != value:
                factors.setdefault(name, {})[path] = value / other
    return factors


def ways_to_fold(model: nn.Module, factors: ScaleFactors) -> Iterator[Callable[[], None]]:
    """Where the factors may go: functions that put them into layers of the model.

    A module that has a scale and a weight itself, as a table of words, takes its factor there. If
    the classifier shares that weight, the norm before it makes up for that.

    Args:
        model: as a config makes it; the functions change it.
        factors: by the path of a module, all of one kind.
    """
    first_layer = model.get_submodule(next(iter(factors)))
    if isinstance(getattr(first_layer, "weight", None), Tensor):
        yield _folding(model, factors, "", None)
        norms = [path for path, layer in model.named_modules() if _is_norm(layer)]
        inverse = {path: 1 / next(iter(factors.values())) for path in norms[-1:]}
        yield _folding(model, factors | inverse, "", None)
    for child, layer in first_layer.named_children():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor):
            continue
        yield _folding(model, factors, child, None)
        if any(size % 3 == 0 for size in weight.shape):
            for third in range(3):
                yield _folding(model, factors, child, third)


def _is_norm(layer: nn.Module) -> bool:
    weight = getattr(layer, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 1


def _folding(
    model: nn.Module, factors: ScaleFactors, child: str, third: int | None
) -> Callable[[], None]:
    @torch.no_grad()
    def fold() -> None:
        for path, factor in factors.items():
            layer = model.get_submodule(f"{path}.{child}".strip("."))
            for tensor, dimension in _outputs(layer):
                part = tensor if third is None else tensor.chunk(3, dimension)[third]
                part.mul_(factor)

    return fold


def _outputs(layer: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """Weight and bias of a layer, and which of their dimensions is that of its outputs."""
    is_transposed = type(layer).__name__ == "Conv1D"  # of transformers: inputs first
    for name, parameter in layer.named_parameters(recurse=False):
        yield parameter.data, 1 if name == "weight" and is_transposed else 0
