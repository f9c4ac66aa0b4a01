"""A part of a model as a model of its own: what a device of some capacity could train alone."""

from __future__ import annotations

from torch import nn

from submodel.config import Config
from submodel.errors import ConfigError
from submodel.model.axes import trace
from submodel.model.build import build_module, load, tensors_of
from submodel.model.cut import gather
from submodel.model.inputs import Inputs
from submodel.randomness import key, seeded
from submodel.schemes.base import Draw
from submodel.schemes.draw import draw_units
from submodel.schemes.static import Static


def take_share(config: Config, module: nn.Module, example: Inputs) -> nn.Module:
    """The first units of every axis, ``model.share`` of them, as the model that is trained.

    It has the shape that ``static`` gives such a capacity. Its layers draw their first weights
    anew, as a model of that size would, where they know how (``reset_parameters``) and no weights
    to begin with are given; others keep their part of the large model's.

    Args:
        config: the configuration.
        module: the whole model.
        example: a batch of inputs.
    """
    share, axes = config.model.share, config.axes
    if share == 1:
        return module
    traced_axes = trace(
        module,
        example,
        freeze=axes.freeze,
        tie=axes.tie,
        whole=axes.whole,
        cut=axes.cut,
        capacities=(share,),
    )
    if not traced_axes.cut_by_capacity:
        raise ConfigError([f"model.share: {share:g} of this model is all of it: it has no axes"])
    cut = draw_units(Static(), traced_axes, share, Draw(config.seed, 0, 0), least=axes.least)
    small = build_module(module, cut)
    load(small, gather(cut, tensors_of(module)))
    if config.model.weights is None:
        with seeded(key(config.seed, "initialise") % 2**63):
            for layer in small.modules():
                if callable(reset := getattr(layer, "reset_parameters", None)):
                    reset()
    return small
