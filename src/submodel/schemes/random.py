"""Fresh draws for every client and round: Algorithm 1 of the paper, and Federated Dropout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field
from torch import nn

from submodel.core.options import Section
from submodel.core.randomness import generator
from submodel.model.axes import Axes
from submodel.model.axes.declare import units_held
from submodel.model.axes.layout import Indices
from submodel.model.cut import PlannedCut
from submodel.model.zoo.images import Block, PreResNet
from submodel.model.zoo.low_rank import factor_pairs
from submodel.schemes.draw import draw_units, draws_by_layer
from submodel.schemes.rolling import Static
from submodel.schemes.scheme import Draw, Mask, RunFacts, Scheme, SchemeContext

MaskSampling = Literal["bernoulli", "fixed"]
Alignment = Literal["residual", "independent"]
"""Whether convolutions on a residual stream draw alike, as in every valid cut, or independently."""


@dataclass(frozen=True)
class Random(Scheme):
    """Fresh units for every client in every round (Algorithm 1 of the paper)."""

    sampling: MaskSampling = "bernoulli"

    class Options(Section):
        """The keys of ``random``."""

        sampling: MaskSampling = Field(
            "bernoulli", description="every unit with probability p, or exactly the share p"
        )
        alignment: Alignment = Field(
            "residual",
            description="independent: every convolution draws its own channels, as in FedRolex's "
            "code; not a valid cut, to reproduce published results (fixed, unit, preresnet)",
        )

    @classmethod
    def configured(cls, options: Options, context: SchemeContext) -> Random:  # noqa: ARG003
        """Make the scheme; layers that draw independently are a scheme of their own."""
        make = IndependentLayers if draws_by_layer(options) else cls
        return make(options.sampling)

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Select each unit with probability p = capacity (``bernoulli``), or exactly this fraction.

        >>> int(Random("fixed").select("hidden", 8, 0.5, Draw(0, 0, 0)).sum())
        4
        """
        rng = generator(draw.seed, "mask", draw.round, draw.client, axis)
        if self.sampling == "bernoulli":
            return rng.random(size) < capacity
        mask = np.zeros(size, dtype=np.bool_)
        mask[rng.choice(size, units_held(capacity, size), replace=False)] = True
        return mask


_FIXED_SIZE = Random("fixed")


@dataclass(frozen=True)
class Dropout(Scheme):
    """Federated Dropout (Caldas, Konecny, McMahan, Talwalkar 2018).

    "Expanding the Reach of Federated Learning by Reducing Client Resource Requirements": of the n
    units of an axis, a client of capacity c holds a set of ceil(c n), uniform among all such sets
    and independent over clients, rounds and axes.

    It equals `random` with ``sampling = "fixed"``, bit for bit. The paper's Algorithm 1 draws every
    unit independently with probability c, so the size of its masks is random, with mean c n; here
    it is always ceil(c n), and all clients of a capacity hold tensors of one shape.
    """

    def select(self, axis: str, size: int, capacity: float, draw: Draw) -> Mask:
        """Select exactly the share, drawn by (seed, round, client, axis).

        >>> int(Dropout().select("hidden", 8, 0.5, Draw(0, 0, 0)).sum())
        4
        """
        return _FIXED_SIZE.select(axis, size, capacity, draw)


@dataclass(frozen=True)
class IndependentLayers(Random):
    """Channels drawn layer by layer, as FedRolex's code does for `random`: not a valid cut.

    It exists only to reproduce published results. Every convolution draws its own output channels,
    in a random order, and reads the output channels of the convolution before it. An identity skip
    then adds channels of different units, so that a client of capacity 1, which holds every weight,
    still does not compute the global model (FedRolex, resnet_server.py, `split_model`).
    """

    def problems(self, run: RunFacts) -> list[str]:
        """Return all differences from that code."""
        net = run.module
        needs = [
            (self.sampling == "fixed", f"scheme.sampling = 'fixed', not {self.sampling!r}"),
            (run.granularity == "unit", "scheme.granularity = 'unit', not 'coordinate'"),
            (
                isinstance(net, PreResNet),
                f"preresnet18 or preresnet34, the only supported layers, not {type(net).__name__}",
            ),
            (
                net is None or not factor_pairs(net),
                "unchanged layers, without model.factorised and model.adapters",
            ),
            (run.are_axes_traced, "unchanged traced axes, as it draws by layers"),
        ]
        return [f"scheme.alignment: 'independent' needs {n}" for holds, n in needs if not holds]

    def own_cut(
        self,
        net: nn.Module,
        axes: Axes,
        capacity: float,
        draw: Draw,
        classes: Indices | None = None,
    ) -> PlannedCut:
        """Draw the channels of each convolution; ``classes`` restricts the rows of the classifier.

        >>> from submodel.model.axes import declare
        >>> net = PreResNet((1, 8, 8), classes=10, width=4, depth=18)
        >>> scheme = IndependentLayers("fixed")
        >>> cut = scheme.own_cut(net, declare({}, {}), 1.0, Draw(0, 0, 0))
        >>> [cut.plan[f"stages.0.0.conv{i}.weight"][0][1].tolist() for i in (1, 2)]
        [[3, 2, 0, 1], [1, 0, 3, 2]]
        """
        assert isinstance(net, PreResNet)  # `problems` refuses others
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
