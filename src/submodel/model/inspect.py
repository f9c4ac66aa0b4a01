"""Description of a model before training: its axes, frozen dimensions with reasons, its layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from submodel.core.errors import ConfigError, SubmodelError
from submodel.core.options import FreeOptions
from submodel.core.registry import is_path
from submodel.model.axes import Axes, trace
from submodel.model.axes.layout import Layout
from submodel.model.build import skeleton
from submodel.model.builtin_models import MODELS
from submodel.model.cost import count_flops, on_meta
from submodel.model.inputs import Inputs
from submodel.model.zoo import ModelContext

_BATCH = 2


@dataclass(frozen=True)
class Subject:
    """A model with example inputs and the selection of its outputs."""

    module: nn.Module
    inputs: Inputs
    outputs: Callable[[Any], Any] | None


def subject(
    name: str,
    options: Mapping[str, Any],
    shape: Sequence[int] | None = None,
    on_meta_device: bool = False,
) -> Subject:
    """Make a model by a built-in name, a ``package.module:factory`` or a Hugging Face config class.

    ``shape`` is the shape of one input; Hugging Face models and modules with ``dummy_inputs`` have
    their own. On the meta device nothing is allocated, so no model is too large.

    >>> subject("cnn", {"width": 4}).inputs.shape
    torch.Size([2, 1, 8, 8])
    """
    with torch.device("meta") if on_meta_device else nullcontext():
        if not is_path(name) and shape is None:
            small = (64,) if name == "gpt" else (1, 8, 8)
            shape = (3, 32, 32) if name.startswith("preresnet") else small
        module = _make_model(name, options, shape or ())
    inputs: Inputs
    if shape is not None:
        random, size = torch.Generator().manual_seed(0), (_BATCH, *shape)
        if name == "gpt":  # every vocabulary of more than one token has the first two
            inputs = torch.randint(2, size, generator=random)
        else:
            inputs = torch.randn(size, generator=random)
    elif isinstance(dummy_inputs := getattr(module, "dummy_inputs", None), Mapping):
        inputs = dict(dummy_inputs)
    else:
        raise ConfigError(f"{name}: give the shape of one input, for example --input 3,32,32")
    if on_meta_device:
        inputs = on_meta(inputs)
        if isinstance(inputs, dict) and inputs.keys() == {"input_ids"}:
            # given the whole mask, causal language models need no values to make one
            batch, tokens = inputs["input_ids"].shape
            inputs["attention_mask"] = torch.ones(batch, 1, tokens, tokens, device="meta")
    config: Any = getattr(module, "config", None)
    if getattr(config, "use_cache", False):
        config.use_cache = False  # a cache would add hidden widths to the outputs
    return Subject(module, inputs, _main_output if config is not None else None)


def _make_model(name: str, options: Mapping[str, Any], shape: Sequence[int]) -> nn.Module:
    """Make the model after validating its options like those of a configuration."""
    model = MODELS.find(name)
    keys = dict(options)
    classes = keys.pop("classes", 10) if model.options is not FreeOptions else 10
    try:
        fields = {"options": keys} if model.options is FreeOptions else keys
        values = model.options(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        option_names = ", ".join([*model.options.model_fields, "classes"])
        raise ConfigError(
            f"model.{key}: {first['input']!r}: {first['msg']}; {name} takes {option_names}"
        ) from None
    if not isinstance(classes, int) or classes < 1:
        raise ConfigError(f"--set classes: {classes!r} is not a whole number of at least 1")
    return model.make(values, ModelContext(shape, classes))


def _main_output(result: Any) -> Any:
    """The logits, or the last hidden state, of a Hugging Face output."""
    for name in ("logits", "last_hidden_state"):
        if getattr(result, name, None) is not None:
            return getattr(result, name)
    return result


def inspect_axes(model: Subject, **overrides: Any) -> Axes:
    """The axes of a subject; overrides as for `submodel.trace`."""
    return trace(model.module, model.inputs, outputs=model.outputs, **overrides)


def axes_remarks(axes: Axes, is_verified: bool) -> str:
    """Remarks on the axes beyond their table."""
    lines = []
    lines += [f"kept whole: {axis}: {reason}" for axis, reason in axes.kept_whole.items()]
    if axes.exact:
        at = ", ".join(f"{capacity:g}" for capacity in axes.measured)
        how = f"measured at capacities {at}" if at else "by its operators; not measured"
        lines.append(f"sub-model = masked model: yes, exactly ({how})")
    elif axes.exact is None:
        lines.append(f"sub-model = masked model: not known; {axes.doubt}")
    else:
        inexact_axes = {
            axis: why for axis, why in axes.inexact.items() if axis in axes.cut_by_capacity
        }
        lines.append("sub-model = masked model: no; statistics or sizes depend on the units kept:")
        lines += [f"  {axis}: {', '.join(why)}" for axis, why in inexact_axes.items()]
    lines += [f"in doubt: {note}" for note in axes.notes]
    lines.append(
        "verified: permuting every axis leaves the outputs unchanged"
        if is_verified
        else "not verified: the meta device holds no values"
    )
    return "\n".join(lines)


@dataclass(frozen=True)
class TensorDimension:
    """One dimension of a tensor.

    Args:
        size: its length.
        axes: the axes that cut it, usually one; empty: it is never cut.
    """

    size: int
    axes: tuple[str, ...]


@dataclass(frozen=True)
class LayerTensor:
    """A parameter of a layer.

    Args:
        name: its name in the model, for example ``conv1.weight``.
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
        """The number of weights."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelLayer:
    """A layer with parameters of its own.

    Args:
        name: its name in the model, for example ``conv1``; empty: the model itself.
        kind: the name of its class, for example ``Conv2d``.
        tensors: its parameters; in most layers the first is the ``weight``, with outputs along the
            first dimension and inputs along the second (an ``Embedding`` has tokens first).
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
    """The layers with parameters, in the order in which a forward pass calls them.

    Layers that the forward pass does not call follow in the order of the model's attributes; if the
    forward pass cannot run without values, all layers have that order. A parameter that several
    layers share belongs to the first. Axes that a capacity leaves whole are omitted.

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
    """The names of layers in the order of a forward pass without values; empty if it fails."""
    try:
        return count_flops(skeleton(module), on_meta(inputs)).order
    except (SubmodelError, NotImplementedError, RuntimeError):
        return []
