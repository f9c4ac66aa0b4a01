"""Building the sub-model of every capacity once, before anything runs."""

from __future__ import annotations

from functools import partial

from torch import nn

from submodel.config import Config
from submodel.data import Dataset
from submodel.model.axes import Axes
from submodel.model.build import build_module
from submodel.model.build.checks import OutputCheck
from submodel.model.cut import WHOLE, Cut
from submodel.prepare.axes import capacity_shares
from submodel.prepare.built_in import BuiltIn, find_once
from submodel.prepare.findings import is_large
from submodel.prepare.fit import check_step
from submodel.schemes import Draw, Random, Scheme, Static
from submodel.schemes.draw import draw_units
from submodel.tasks.loss import Loss


def check_builds(
    module: nn.Module,
    axes: Axes,
    scheme: Scheme,
    config: Config,
    data: Dataset,
    loss: Loss,
    built_in: BuiltIn | None,
) -> None:
    """Build every capacity once, before anything runs: what cannot be built is said now.

    The smallest takes a training step, too.

    The whole, too: its copy must be a model of its own. A scheme that keeps unequal numbers of
    units is asked for some of its own cuts, as sizes that fit the others need not fit those. Of a
    built-in model, what was built once in this process is not built again.
    """
    outputs = OutputCheck(module, data.example)

    def check(cut: Cut, *, trains: bool = False) -> None:
        small = build_module(module, cut)
        outputs.check(small, cut)
        if trains:
            check_step(small, data, loss, config.local.batch_size, axes)

    shares = sorted(capacity_shares(config) - {1.0})
    is_cut = config.scheme.granularity == "unit" and bool(shares)
    find_once(built_in, "whole", lambda: check(WHOLE, trains=not is_cut and not is_large(module)))
    if not is_cut:
        return
    shape_keys: set[object] = set()
    plain = [(Static(), capacity, 0) for capacity in shares]
    for rule, capacity, client in [*plain, *((scheme, shares[0], n) for n in range(3))]:
        draw = Draw(config.seed, 0, client)
        try:
            cut = draw_units(rule, axes, capacity, draw, least=config.axes.least)
        except LookupError:  # it looks at the model; then it may draw anything
            cut = draw_units(Random("bernoulli"), axes, capacity, draw, least=config.axes.least)
        if cut.shape_key not in shape_keys:
            is_first = not shape_keys
            shape_keys.add(cut.shape_key)
            find_once(built_in, ("cut", cut.shape_key), partial(check, cut, trains=is_first))
