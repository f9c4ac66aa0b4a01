"""The config whose model has the sizes of a sub-model, looked for without knowing architectures.

Models are built without memory, and compared with the sub-model: every tensor's shape, and the
plain integers of every module, such as a number of heads. From what differs follow the values that
are worth trying; those that leave less to differ are tried first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from submodel.model.build.integers import plain_integers

FieldPath = tuple[str | int, ...]
"""Keys of nested tables and places in lists, from the outside to the inside."""
Changes = Mapping[FieldPath, int]

_NO_SIZES = ("_token_id", "_token_index", "_idx")
_NO_TABLES = ("id2label", "label2id", "rope_parameters", "rope_scaling", "quantization_config")


def size_fields(values: Any, path: FieldPath = ()) -> dict[FieldPath, int | None]:
    """The whole numbers of a config, and what is left open in it.

    Args:
        values: the config as a dictionary, or what is inside it.
        path: where that is.

    >>> size_fields({"n_embd": 8, "n_inner": None, "depths": [2, 3], "pad_token_id": 0})
    {('n_embd',): 8, ('n_inner',): None, ('depths', 0): 2, ('depths', 1): 3}
    """
    if isinstance(values, Mapping):
        entries: list[tuple[str | int, Any]] = [
            (key, value)
            for key, value in values.items()
            if key not in _NO_TABLES and not str(key).endswith(_NO_SIZES)
        ]
    elif isinstance(values, list):
        entries = [(place, value) for place, value in enumerate(values) if value is not None]
    else:
        return {path: values} if values is None or type(values) is int else {}
    fields: dict[FieldPath, int | None] = {}
    for key, value in entries:
        fields |= size_fields(value, (*path, key))
    return fields


def with_changes(values: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """The config with other values; what is given stays as it is.

    >>> with_changes({"text": {"width": 8, "depths": [2, 3]}}, {("text", "depths", 1): 5})
    {'text': {'width': 8, 'depths': [2, 5]}}
    """
    result: Any = deepcopy(dict(values))
    for path, value in changes.items():
        table = result
        for key in path[:-1]:
            table = table[key]
        table[path[-1]] = value
    changed_values: dict[str, Any] = result
    return changed_values


def spell_changes(changes: Changes) -> str:
    """In words.

    >>> spell_changes({("n_embd",): 4, ("depths", 1): 5})
    'n_embd = 4, depths.1 = 5'
    """
    return ", ".join(f"{'.'.join(map(str, path))} = {value}" for path, value in changes.items())


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


_BUFFER = "inv_freq"
_KEY = "rope_parameters"


def kept_frequencies(small: nn.Module) -> dict[str, Tensor]:
    """The buffers with frequencies, by name."""
    return {
        name: buffer
        for name, buffer in small.named_buffers()
        if name.rpartition(".")[2] == _BUFFER and buffer.dim() == 1
    }


def rotary_changes(small: nn.Module, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rotary parameters of a config that may give the frequencies of a sub-model, plainest first.

    The first frequencies are those of another base. Any others are what LongRoPE is there for: a
    factor for each.

    Args:
        small: the sub-model.
        values: its config as a dictionary, which has the full model's rotary parameters.
    """
    buffers = list(kept_frequencies(small).values())
    parameters = values.get(_KEY)
    if not buffers or not isinstance(parameters, Mapping) or "rope_theta" not in parameters:
        return []
    if any(not torch.equal(buffer, buffers[0]) for buffer in buffers):
        return []  # a config has one list of frequencies
    frequencies = buffers[0].double()
    steps = torch.arange(len(frequencies), dtype=torch.float64) / len(frequencies)
    default = {**parameters, "rope_type": "default"}
    bases = [float(parameters["rope_theta"])]
    if len(frequencies) > 1:
        base = float(frequencies[1] ** -len(frequencies))
        bases = [float(f"{base:.6g}"), base, *bases]
    factors = (1 / (frequencies * bases[-1] ** steps)).tolist()
    layers = (layer for layer in small.modules() if hasattr(layer, _BUFFER))
    scale: Any = getattr(next(layers), "attention_scaling", 1.0)
    long = {
        "rope_type": "longrope",
        "rope_theta": bases[-1],
        "short_factor": factors,
        "long_factor": factors,
        "factor": 1.0,
        "attention_factor": float(scale),
        "original_max_position_embeddings": values["max_position_embeddings"],
    }
    return [*({**default, "rope_theta": base} for base in bases), long]
