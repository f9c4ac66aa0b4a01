"""Corrections of layers that store their sizes as plain numbers, after a cut.

One short function per type of layer sets the numbers that depend on the shapes of the cut weights.
Register a function for your own layers with `resizes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from submodel.core.errors import SubmodelError
from submodel.model.axes.layout import FixedPart, Indices, Layout
from submodel.model.axes.number import Attribute
from submodel.model.build.integers import Sizes, count_groups, kept_size
from submodel.model.cut import UnitCut
from submodel.model.norm import StaticBatchNorm

Fix = Callable[..., None]
_FIXES: dict[type[nn.Module], Fix] = {}
_F = TypeVar("_F", bound=Fix)


@dataclass(frozen=True)
class LayerCut:
    """One layer of a model and the cut applied to it."""

    path: str  # of the layer in the model
    original: nn.Module
    cut: UnitCut
    sizes: Sizes
    names: dict[int, str]  # id of a tensor -> its name in the model

    def layout(self, tensor: str, dimension: int = 0) -> Layout:
        """The layout of a dimension of a tensor of the layer or of an inner layer."""
        whole = attrgetter(tensor)(self.original)
        if id(whole) not in self.names:
            raise self.error(f"its {tensor} is computed, not stored")
        layouts = self.cut.axes.layouts.get(self.names[id(whole)])
        return FixedPart(whole.shape[dimension]) if layouts is None else layouts[dimension]

    def positions(self, tensor: str, dimension: int = 0) -> Indices:
        """The kept positions along a dimension of such a tensor."""
        return self.layout(tensor, dimension).indices(self.cut.units)

    def groups(self, groups: int, tensor: str, dimension: int = 0) -> int:
        """The number of equal groups that remain along a dimension of a tensor.

        The remaining groups must keep equal numbers of units, as no layer can express groups of
        different sizes.
        """
        if groups == 1:
            return 1
        by_trace = self.traced_layout("groups" if tensor else "num_groups")
        is_stored = tensor and id(attrgetter(tensor)(self.original)) in self.names
        if not is_stored and by_trace is None and self._is_whole():
            return groups
        layout = self.layout(tensor, dimension) if is_stored or by_trace is None else by_trace
        count = count_groups(layout, layout.size // groups, self.sizes.kept_counts)
        if count is None:
            raise self.error(
                f"its {groups} groups of {layout.size // groups} would keep different numbers of "
                "units; cut whole groups, or the same units of each group"
            )
        return count

    def _is_whole(self) -> bool:
        """Return whether no tensor of the layer is cut."""
        tensors = (*self.original.parameters(), *self.original.buffers())
        layouts = [self.cut.axes.layouts.get(self.names[id(t)], ()) for t in tensors]
        return all(kept_size(d, self.sizes.kept_counts) == d.size for dims in layouts for d in dims)

    def traced_layout(self, what: str) -> Layout | None:
        """The dimension that a number of the layer counts or groups in the trace, if known."""
        numbers = self.cut.axes.code_numbers
        number = Attribute(f"{self.path}.{what}" if self.path else what)
        sizings = [] if numbers is None else [m for m in numbers.layers if m.number == number]
        layout: Layout | None = sizings[0].dimension if sizings else None
        return layout

    def follow(self, size: int, what: str) -> int:
        """The new value of a size that no tensor of the layer itself shows.

        It follows from the trace, or without a trace from the tensors nearest to the layer.
        """
        by_trace = self.traced_layout(what)
        if by_trace is not None:
            return kept_size(by_trace, self.sizes.kept_counts)
        becomes = self.sizes.inside(self.path, size) or self.sizes.around(self.path, size)
        if len(becomes) > 1:
            raise self.error(f"{what} = {size} may become any of {sorted(becomes)}")
        return next(iter(becomes), size)

    def error(self, problem: str) -> SubmodelError:
        """The error to raise if the layer cannot be cut this way."""
        where = f"{self.path} ({type(self.original).__name__})"
        return SubmodelError(
            f"cannot build the sub-model: {where}: {problem}; or give `factory` or `resize`"
        )


def resizes(*kinds: type[nn.Module]) -> Callable[[_F], _F]:
    """Register a function that corrects layers of these types and of derived types.

    The function gets the copied layer, whose tensors are already cut, and a `LayerCut`. It must
    correct all plain numbers of the layer.

    >>> import torch
    >>> class Heads(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.count, self.weight = 4, nn.Parameter(torch.ones(4, 6))
    >>> @resizes(Heads)
    ... def fix_heads(layer, cut):
    ...     layer.count = layer.weight.shape[0]
    >>> from submodel.model.axes import declare
    >>> from submodel.model.build import build_module
    >>> axes = declare({"weight": torch.ones(4, 6)}, {"weight": ("heads",)})
    >>> build_module(Heads(), UnitCut(axes, {"heads": np.array([0, 3])})).count
    2
    """

    def register(fix: _F) -> _F:
        _FIXES.update(dict.fromkeys(kinds, fix))
        return fix

    return register


def fix_of(layer: nn.Module) -> Fix | None:
    """The function registered for the nearest type that the layer is derived from."""
    fix = next((_FIXES[kind] for kind in type(layer).__mro__ if kind in _FIXES), None)
    return _transposed_linear if fix is None and _is_transposed_linear(layer) else fix


@resizes(nn.Linear)
def _linear(layer: nn.Linear, cut: LayerCut) -> None:  # noqa: ARG001
    layer.out_features, layer.in_features = layer.weight.shape


@resizes(nn.Bilinear)
def _bilinear(layer: nn.Bilinear, cut: LayerCut) -> None:  # noqa: ARG001
    layer.out_features, layer.in1_features, layer.in2_features = layer.weight.shape


@resizes(_ConvNd)
def _conv(layer: _ConvNd, cut: LayerCut) -> None:
    layer.groups = cut.groups(layer.groups, "weight")
    first, second = layer.weight.shape[0], layer.weight.shape[1] * layer.groups
    layer.out_channels, layer.in_channels = (second, first) if layer.transposed else (first, second)


@resizes(_NormBase)
def _batch_norm(layer: _NormBase, cut: LayerCut) -> None:
    vector = layer.weight if layer.affine else layer.running_mean
    if vector is not None:
        layer.num_features = vector.shape[0]
    else:
        layer.num_features = cut.follow(layer.num_features, "num_features")


@resizes(StaticBatchNorm)
def _static_batch_norm(layer: StaticBatchNorm, cut: LayerCut) -> None:
    if layer.statistics is not None:
        mean, variance = layer.statistics
        channels = cut.positions("weight")
        layer.statistics = mean[channels], variance[channels]


@resizes(nn.LayerNorm, nn.RMSNorm)
def _layer_norm(layer: nn.LayerNorm | nn.RMSNorm, cut: LayerCut) -> None:
    if layer.elementwise_affine:
        layer.normalized_shape = tuple(layer.weight.shape)
    else:
        layer.normalized_shape = tuple(
            cut.follow(size, f"normalized_shape[{place}]")
            for place, size in enumerate(layer.normalized_shape)
        )


@resizes(nn.GroupNorm)
def _group_norm(layer: nn.GroupNorm, cut: LayerCut) -> None:
    if layer.affine:
        layer.num_groups = cut.groups(layer.num_groups, "weight")
        layer.num_channels = layer.weight.shape[0]
        return
    channels = cut.follow(layer.num_channels, "num_channels")
    if channels != layer.num_channels and layer.num_groups > 1:
        if cut.traced_layout("num_groups") is None:
            raise cut.error("without weights, the kept groups are not known")
        layer.num_groups = cut.groups(layer.num_groups, "")
    layer.num_channels = channels


@resizes(nn.Embedding, nn.EmbeddingBag)
def _embedding(layer: nn.Embedding | nn.EmbeddingBag, cut: LayerCut) -> None:
    layer.num_embeddings, layer.embedding_dim = layer.weight.shape
    if layer.padding_idx is not None:
        place = np.flatnonzero(cut.positions("weight") == layer.padding_idx)
        if not len(place):
            raise cut.error(f"the row of padding_idx = {layer.padding_idx} is not kept")
        layer.padding_idx = int(place[0])


@resizes(nn.RNNBase)
def _rnn(layer: nn.RNNBase, cut: LayerCut) -> None:
    gates = {"LSTM": 4, "GRU": 3}.get(layer.mode, 1)
    shapes = {name: parameter.shape for name, parameter in layer.named_parameters()}
    if computed := sorted(set(layer._flat_weights_names) - shapes.keys()):
        raise cut.error(
            f"it computes {computed[0]}, but recurrent layers of torch list their weights "
            "once, as they were; parametrise a cell, as nn.LSTMCell, in a loop"
        )
    layer.hidden_size = shapes["weight_hh_l0"][0] // gates
    layer.input_size = shapes["weight_ih_l0"][1]
    if layer.proj_size:
        layer.proj_size = shapes["weight_hr_l0"][0]


@resizes(nn.RNNCellBase)
def _rnn_cell(layer: nn.RNNCellBase, cut: LayerCut) -> None:  # noqa: ARG001
    layer.hidden_size, layer.input_size = layer.weight_hh.shape[1], layer.weight_ih.shape[1]


@resizes(nn.MultiheadAttention)
def _attention(layer: nn.MultiheadAttention, cut: LayerCut) -> None:
    """Correct the single width, which is that of the input and of all heads together."""
    layer.num_heads = cut.groups(layer.num_heads, "out_proj.weight", dimension=1)
    out, of_heads = layer.out_proj.weight.shape
    reading = layer.in_proj_weight if layer._qkv_same_embed_dim else layer.q_proj_weight
    input_width = reading.shape[1]
    if not input_width == out == of_heads:
        raise cut.error(
            f"it needs one width, but would read {input_width} units, write {out} and have "
            f"{layer.num_heads} heads with {of_heads} units in all"
        )
    layer.embed_dim = layer.kdim = layer.vdim = out
    layer.head_dim = out // layer.num_heads
    if not layer._qkv_same_embed_dim:
        layer.kdim, layer.vdim = layer.k_proj_weight.shape[1], layer.v_proj_weight.shape[1]


@resizes(nn.Transformer)
def _transformer(layer: nn.Transformer, cut: LayerCut) -> None:
    layer.d_model = cut.follow(layer.d_model, "d_model")
    attention = (m for m in layer.modules() if isinstance(m, nn.MultiheadAttention))
    layer.nhead = next((m.num_heads for m in attention), layer.nhead)


@resizes(nn.PReLU)
def _prelu(layer: nn.PReLU, cut: LayerCut) -> None:  # noqa: ARG001
    layer.num_parameters = layer.weight.shape[0]


@resizes(nn.Unflatten)
def _unflatten(layer: nn.Unflatten, cut: LayerCut) -> None:
    sizes = layer.unflattened_size
    if all(isinstance(size, int) for size in sizes):
        layer.unflattened_size = tuple(
            cut.follow(size, f"unflattened_size[{place}]") if size > 1 else size
            for place, size in enumerate(sizes)
        )


def _is_transposed_linear(layer: nn.Module) -> bool:
    """Return whether a layer is GPT-2's linear layer, of which libraries have their own classes."""
    shape = getattr(getattr(layer, "weight", None), "shape", None)
    return shape is not None and shape == (getattr(layer, "nx", None), getattr(layer, "nf", None))


def _transposed_linear(layer: Any, cut: LayerCut) -> None:  # noqa: ARG001
    layer.nx, layer.nf = layer.weight.shape
