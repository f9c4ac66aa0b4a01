"""The axes of a run: given, traced or none, and what the scheme selects from."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from submodel.config import Config
from submodel.data import Dataset
from submodel.errors import ConfigError
from submodel.model.axes import Axes, Dimension, declare, trace
from submodel.model.axes.record import to_change
from submodel.model.build import tensors_of
from submodel.model.build.checks import check_axes
from submodel.model.cut import COORDINATES
from submodel.model.zoo import only_ranks
from submodel.model.zoo.low_rank import adapters_of
from submodel.prepare.built_in import BuiltIn, find_once


def find_axes(
    config: Config,
    module: nn.Module,
    data: Dataset,
    own_axes: Axes | Mapping[str, tuple[Dimension, ...]] | None,
    built_in: BuiltIn | None,
) -> Axes:
    """The axes as given, or traced where anything is cut along them.

    Args:
        config: the configuration.
        module: the model.
        data: what it is for.
        own_axes: the axes, or a table of them, if they are given.
        built_in: which built-in model it is, if it is one: it is traced once in a process.
    """
    if isinstance(own_axes, Axes):
        check_axes(module, own_axes)
        return own_axes
    if own_axes is not None:
        return declare(tensors_of(module), own_axes)
    by_label = config.local.absent_labels != "keep"
    by_capacity = config.scheme.granularity == "unit" and min(capacity_shares(config)) < 1
    if not by_label and not by_capacity:
        return declare(tensors_of(module), {})
    capacities = tuple(sorted(capacity_shares(config) - {1.0}, reverse=True))

    def find() -> Axes:
        return trace(
            module,
            data.example,
            classes=by_label,
            freeze=config.axes.freeze,
            tie=config.axes.tie,
            whole=config.axes.whole,
            cut=config.axes.cut,
            capacities=capacities,
            least=config.axes.least,
        )

    try:
        return find_once(built_in, ("axes", by_label, capacities), find)
    except ConfigError as error:
        if not by_label or not any(p.startswith("classes:") for p in error.problems):
            raise
        hint = "local.absent_labels: cutting the classifier's rows is not possible here; use 'keep'"
        raise ConfigError([*error.problems, hint]) from None


def only_cut_ranks(config: Config, module: nn.Module, axes: Axes) -> Axes:
    """The axes that capacities cut: ranks alone where the model is factorised or has adapters."""
    has_ranks = config.model.factorised or bool(adapters_of(module))
    return only_ranks(module, axes) if has_ranks else axes


def capacity_shares(config: Config) -> set[float]:
    """The capacities, and the widths that steps may take."""
    return {*config.clients.capacities, *(getattr(config.scheme, "widths", None) or ())}


def selection_sizes(config: Config, module: nn.Module, axes: Axes) -> dict[str, int]:
    """The axes that the scheme selects from."""
    if config.scheme.granularity == "coordinate":
        return {COORDINATES: sum(p.numel() for p in module.parameters())}
    sizes = axes.cut_by_capacity
    if not sizes and min(capacity_shares(config)) < 1:
        raise ConfigError(
            [
                "scheme.granularity: 'unit' needs axes to cut, and this model has none; "
                "'submodel inspect' says why; or use 'coordinate'",
                *to_change(axes.frozen, axes.kept_whole, axes.lines),
            ]
        )
    return sizes or {COORDINATES: 1}
