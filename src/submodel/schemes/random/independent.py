"""Channels drawn layer by layer, as FedRolex's code draws them for `random`: not a valid cut.

It exists only to reproduce published results. Every convolution draws its own output channels, in
an order of their own, and reads those that the convolution before it put out. An identity skip then
adds channels that do not belong together, so that a client of capacity 1, which holds every weight,
still does not compute the global model (FedRolex, resnet_server.py, `split_model`).
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from submodel.model.axes import Axes
from submodel.model.axes.layout import Indices
from submodel.model.cut import PlannedCut
from submodel.model.zoo.preresnet import Block, PreResNet
from submodel.randomness import generator
from submodel.schemes import Draw, Static, units_held
from submodel.schemes.draw import draw_units

Alignment = Literal["residual", "independent"]
"""Along residual streams (what every valid cut does), or every convolution for itself."""


def draw_independent(
    net: nn.Module, axes: Axes, capacity: float, draw: Draw, classes: Indices | None = None
) -> PlannedCut:
    """The channels that each convolution draws; ``classes`` keeps those rows of the classifier.

    >>> from submodel.model.axes import declare
    >>> net = PreResNet((1, 8, 8), classes=10, width=4, depth=18)
    >>> cut = draw_independent(net, declare({}, {}), 1.0, Draw(0, 0, 0))
    >>> [cut.plan[f"stages.0.0.conv{i}.weight"][0][1].tolist() for i in (1, 2)]
    [[3, 2, 0, 1], [1, 0, 3, 2]]
    """
    assert isinstance(net, PreResNet)  # `submodel.prepare.setup` refuses others
    plan: dict[str, tuple[tuple[int, Indices], ...]] = {}

    def convolve(path: str, layer: nn.Conv2d, inputs: Indices | None) -> Indices:
        order = generator(draw.seed, "independent", draw.round, draw.client, path)
        size = layer.out_channels
        channels = order.permutation(size)[: units_held(capacity, size)]
        plan[f"{path}.weight"] = (
            ((0, channels),) if inputs is None else ((0, channels), (1, inputs))
        )
        return channels

    def normalise(path: str, channels: Indices) -> None:
        plan[f"{path}.weight"] = plan[f"{path}.bias"] = ((0, channels),)

    stream = convolve("stem", net.stem, None)
    for path, block in net.named_modules():
        if isinstance(block, Block):
            entering = stream
            normalise(f"{path}.norm1", entering)
            inner = convolve(f"{path}.conv1", block.conv1, entering)
            normalise(f"{path}.norm2", inner)
            stream = convolve(f"{path}.conv2", block.conv2, inner)
            if block.shortcut is not None:
                plan[f"{path}.shortcut.weight"] = ((0, stream), (1, entering))
    normalise("norm", stream)
    if classes is None or len(classes) == net.classifier.out_features:
        plan["classifier.weight"] = ((1, stream),)
    else:
        plan["classifier.weight"] = ((0, classes), (1, stream))
        plan["classifier.bias"] = ((0, classes),)
    return PlannedCut(plan, like=draw_units(Static(), axes, capacity, draw, classes))
