"""Hand-declared axes of the built-in models, the reference for tracing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from submodel.model.axes import CLASSES, Axes, Dimension, declare
from submodel.model.build import tensors_of
from submodel.model.zoo.images import BLOCKS


def mlp_axes() -> dict[str, tuple[Dimension, ...]]:
    """Two hidden layers, each with its own axis."""
    return {
        "1.weight": ("hidden1", None),
        "1.bias": ("hidden1",),
        "3.weight": ("hidden2", "hidden1"),
        "3.bias": ("hidden2",),
        "5.weight": (CLASSES, "hidden2"),
        "5.bias": (CLASSES,),
    }


def cnn_axes(inputs: Sequence[int]) -> dict[str, tuple[Dimension, ...]]:
    """Two channel axes and the hidden layer; the flatten makes channels x height x width."""
    _, height, columns = inputs
    return {
        "0.weight": ("channels1", None),
        "1.weight": ("channels1",),
        "1.bias": ("channels1",),
        "4.weight": ("channels2", "channels1"),
        "5.weight": ("channels2",),
        "5.bias": ("channels2",),
        "9.weight": ("hidden", ("channels2", height // 4, columns // 4)),
        "9.bias": ("hidden",),
        "11.weight": (CLASSES, "hidden"),
        "11.bias": (CLASSES,),
    }


def preresnet_axes(depth: int) -> dict[str, tuple[Dimension, ...]]:
    """One axis per residual stream (a stage) and one inside each block."""
    axes: dict[str, tuple[Dimension, ...]] = {"stem.weight": ("stage0",)}
    stream = "stage0"
    for s, blocks in enumerate(BLOCKS[depth]):
        for b in range(blocks):
            block, inner, out = f"stages.{s}.{b}", f"stage{s}.block{b}", f"stage{s}"
            axes |= {
                f"{block}.norm1.weight": (stream,),
                f"{block}.norm1.bias": (stream,),
                f"{block}.conv1.weight": (inner, stream),
                f"{block}.norm2.weight": (inner,),
                f"{block}.norm2.bias": (inner,),
                f"{block}.conv2.weight": (out, inner),
            }
            if s and not b:
                axes[f"{block}.shortcut.weight"] = (out, stream)
            stream = out
    return axes | {
        "norm.weight": (stream,),
        "norm.bias": (stream,),
        "classifier.weight": (CLASSES, stream),
        "classifier.bias": (CLASSES,),
    }


def declared(name: str, module: nn.Module, inputs: Sequence[int]) -> Axes:
    """Return the axes of a built-in model."""
    tables: dict[str, Callable[[], dict[str, tuple[Dimension, ...]]]] = {
        "mlp": mlp_axes,
        "cnn": lambda: cnn_axes(inputs),
        "preresnet18": lambda: preresnet_axes(18),
        "preresnet34": lambda: preresnet_axes(34),
    }
    return declare(tensors_of(module), tables[name]())
