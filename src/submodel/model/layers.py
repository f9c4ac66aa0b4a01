"""The layers of a model in the order of its forward, and the axis along each dimension."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from itertools import zip_longest

from torch import nn

from submodel.errors import SubmodelError
from submodel.model.axes import Axes
from submodel.model.axes.layout import Layout
from submodel.model.build import skeleton
from submodel.model.cost import call_order, on_meta
from submodel.model.inputs import Inputs


@dataclass(frozen=True)
class TensorDimension:
    """One dimension of a tensor.

    Args:
        size: how long it is.
        axes: the axes that cut it, as a rule one; empty: it is never cut.
    """

    size: int
    axes: tuple[str, ...]


@dataclass(frozen=True)
class LayerTensor:
    """A parameter of a layer.

    Args:
        name: in the model, as ``conv1.weight``.
        dimensions: in the order of its shape.
    """

    name: str
    dimensions: tuple[TensorDimension, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of every dimension."""
        return tuple(dimension.size for dimension in self.dimensions)

    @property
    def value_count(self) -> int:
        """How many weights it has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelLayer:
    """A layer that has parameters of its own.

    Args:
        name: in the model, as ``conv1``; empty: the model itself.
        kind: the name of its class, as ``Conv2d``.
        tensors: its parameters; of most layers, the first is the ``weight``, whose first dimension
            are outputs and whose second are inputs (an ``Embedding``'s first are tokens).
    """

    name: str
    kind: str
    tensors: tuple[LayerTensor, ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that cut it, each once."""
        dimensions = (d for tensor in self.tensors for d in tensor.dimensions)
        return tuple(dict.fromkeys(axis for d in dimensions for axis in d.axes))


def describe_layers(module: nn.Module, axes: Axes, inputs: Inputs) -> tuple[ModelLayer, ...]:
    """The layers with parameters in the order in which a forward calls them.

    Those that no forward calls by themselves follow in the order of their names' places in the
    model; so do all where the forward cannot run without values. A parameter that several layers
    share is that of the first.

    Args:
        module: the model; neither its values nor its random state are touched.
        axes: what cuts its tensors; axes that a capacity leaves whole are not named.
        inputs: an example of what it takes.

    >>> import torch
    >>> from submodel.model.axes import declare
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> axes = declare(dict(net.named_parameters()), {"0.weight": ("hidden",)})
    >>> layer, _ = describe_layers(net, axes, torch.empty(1, 4))
    >>> layer.kind, layer.tensors[0].dimensions[0]
    ('Linear', TensorDimension(size=8, axes=('hidden',)))
    """
    cut_axes = axes.cut_by_capacity
    modules = dict(module.named_modules())
    tensors: dict[str, list[LayerTensor]] = {}
    for name, parameter in module.named_parameters():
        dimensions = tuple(
            _dimension(size, layout, cut_axes)
            for size, layout in zip_longest(parameter.shape, axes.layouts.get(name, ()))
        )
        tensors.setdefault(name.rpartition(".")[0], []).append(LayerTensor(name, dimensions))
    order = [name for name in _order(module, inputs) if name in tensors]
    return tuple(
        ModelLayer(name, type(modules[name]).__name__, tuple(tensors[name]))
        for name in dict.fromkeys([*order, *tensors])
    )


def _dimension(size: int, layout: Layout | None, axes: Container[str]) -> TensorDimension:
    names = () if layout is None else layout.axes()
    return TensorDimension(size, tuple(dict.fromkeys(name for name in names if name in axes)))


def _order(module: nn.Module, inputs: Inputs) -> list[str]:
    """The names of layers, as a forward without values calls them; empty where none can run."""
    try:
        return call_order(skeleton(module), on_meta(inputs))
    except (SubmodelError, NotImplementedError, RuntimeError):
        return []
