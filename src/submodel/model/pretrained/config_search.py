"""The config whose model has the sizes of a sub-model, looked for without knowing architectures.

Models are built without memory, and compared with the sub-model: every tensor's shape, and the
plain integers of every module, such as a number of heads. From what differs follow the values that
are worth trying; those that leave less to differ are tried first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from torch import nn

from submodel.model.build.attributes import plain_integers
from submodel.model.pretrained.config_values import Changes, FieldPath

_MOST_BUILDS = 400
Build = Callable[[Changes], nn.Module]
"""From changes of a config to a model without values; raises where there is none."""
NamedShapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ModelSizes:
    """What a model's sizes are.

    Args:
        shapes: of the tensors, by name.
        integers: that modules store, by the path to each.
    """

    shapes: NamedShapes
    integers: Mapping[str, int]


@dataclass(frozen=True)
class Misfit:
    """What a config leaves to differ from the sub-model.

    Args:
        changes: of the full model's config.
        tensors: the shape there and in the sub-model, by name; None: there is no such tensor.
        integers: the same of integers.
        is_refused: the library makes no such model; what differs is from before the last change.
    """

    changes: Changes
    tensors: Mapping[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]]
    integers: Mapping[str, tuple[int, int]]
    is_refused: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better."""
        return len(self.tensors), len(self.integers)

    def steps(self) -> list[tuple[int, int]]:
        """Sizes there and in the sub-model that differ, without repetition, shapes first."""
        pairs: dict[tuple[int, int], None] = {}
        for there, here in self.tensors.values():
            if there is not None and here is not None and len(there) == len(here):
                pairs |= dict.fromkeys(zip(there, here, strict=True))
        pairs |= dict.fromkeys(self.integers.values())
        return [(there, here) for there, here in pairs if there != here and there > 0 < here]


def measure_sizes(module: nn.Module) -> ModelSizes:
    """The sizes of a model.

    >>> measure_sizes(nn.Linear(2, 3)).shapes["weight"]
    (3, 2)
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    integers = {
        f"{path}.{name}".removeprefix("."): value
        for path, layer in module.named_modules()
        for name, value in plain_integers(layer).items()
        if not name.startswith("_")
    }
    return ModelSizes(shapes, integers)


def compare_sizes(there: ModelSizes, here: ModelSizes, changes: Changes) -> Misfit:
    """What differs between the model of a config and the sub-model."""
    names = dict.fromkeys([*here.shapes, *there.shapes])
    tensors = {name: (there.shapes.get(name), here.shapes.get(name)) for name in names}
    return Misfit(
        changes,
        {name: pair for name, pair in tensors.items() if pair[0] != pair[1]},
        {
            name: (there.integers[name], value)
            for name, value in here.integers.items()
            if name in there.integers and there.integers[name] != value
        },
    )


def search_configs(
    small: ModelSizes, fields: Mapping[FieldPath, int | None], build: Build
) -> tuple[list[Misfit], Misfit]:
    """The configs whose models have the shapes of the sub-model, and the one that comes nearest.

    Args:
        small: the sizes of the sub-model.
        fields: what may be changed in the full model's config, and what it is.
        build: makes the model of a config.
    """
    start = compare_sizes(measure_sizes(build({})), small, {})
    order = count()
    waiting = [(start.rank, next(order), start)]
    tried_changes = {frozenset[tuple[FieldPath, int]]()}
    fits, nearest = ([start] if not start.tensors else []), start
    while waiting and len(tried_changes) < _MOST_BUILDS:
        rank, _, misfit = heapq.heappop(waiting)
        if fits and rank > fits[0].rank:
            break  # nothing that waits is better
        for path, value in _moves(misfit, fields):
            changes = {**misfit.changes, path: value}
            if (identity := frozenset(changes.items())) in tried_changes:
                continue
            tried_changes.add(identity)
            try:
                next_misfit = compare_sizes(measure_sizes(build(changes)), small, changes)
            except Exception:  # whatever the library says against it; another change may help
                if misfit.is_refused:
                    continue
                next_misfit = replace(misfit, changes=changes, is_refused=True)
            else:
                if replace(next_misfit, changes=misfit.changes) == misfit:
                    continue  # it says nothing about sizes
                nearest = min(nearest, next_misfit, key=lambda each: each.rank)
                if not next_misfit.tensors:
                    fits = sorted([*fits, next_misfit], key=lambda each: each.rank)
            heapq.heappush(waiting, (next_misfit.rank, next(order), next_misfit))
    return [_shorten(fit, small, build) for fit in fits], _shorten(nearest, small, build)


def _shorten(misfit: Misfit, small: ModelSizes, build: Build) -> Misfit:
    """The same without changes that it does not need."""
    for path in misfit.changes:
        changes = {key: value for key, value in misfit.changes.items() if key != path}
        try:
            shorter = compare_sizes(measure_sizes(build(changes)), small, changes)
        except Exception:  # the library refuses it, so the change is needed
            continue
        if replace(shorter, changes=misfit.changes) == misfit:
            misfit = shorter
    return misfit


def _moves(
    misfit: Misfit, fields: Mapping[FieldPath, int | None]
) -> Iterator[tuple[FieldPath, int]]:
    """The values that may make one more size fit: that size, as much less, or as much more.

    The latter where a number is shared out: half as many heads are twice as large.
    """
    for there, here in misfit.steps():
        for path, full_value in fields.items():
            value = misfit.changes.get(path, full_value)
            if value == there or value is None:
                yield path, here
            elif value > 1 and value * here % there == 0:
                yield path, value * here // there
    for there, here in dict.fromkeys(misfit.integers.values()):
        for path, full_value in fields.items():
            value = misfit.changes.get(path, full_value)
            if value is not None and value > 1 and here and value * there % here == 0:
                yield path, value * there // here
