"""Conversion of sub-models of `transformers` models to a config, for `from_pretrained`.

The config is found by a search that does not depend on the architecture. Models are built on the
meta device and compared with the sub-model: the shapes of all tensors, and the plain integers of
all modules, such as the number of heads. Differences suggest values to try; configs with fewer
differences are tried first.

A sub-model stores scales such as the full model's 1/sqrt(size of a head), but the config's model
would store those of the small head. The quotient is multiplied into a layer, usually that of the
queries; several layers are tried. In the end both models compute the same.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count, product
from typing import Any

import torch
from torch import Tensor, nn

from submodel.core.errors import SubmodelError, wrap_errors
from submodel.core.randomness import seeded
from submodel.model.axes.verify import as_double, double
from submodel.model.build.integers import plain_integers
from submodel.model.inputs import Inputs, call
from submodel.model.zoo.hugging_face import only_errors

FieldPath = tuple[str | int, ...]
"""Keys of nested tables and positions in lists, from the outside to the inside."""
Changes = Mapping[FieldPath, int]
Build = Callable[[Changes], nn.Module]
"""A function from changes of a config to a model without values; it raises for bad changes."""
Sizes = tuple[dict[str, tuple[int, ...]], dict[str, int]]
"""Shapes of a model's tensors by name, and integers stored by modules by path."""
ScaleFactors = dict[str, float]
"""Ratio of the sub-model's scale to that of the config's model, by the path of a module."""

_NO_SIZES = ("_token_id", "_token_index", "_idx")
_NO_TABLES = ("id2label", "label2id", "rope_parameters", "rope_scaling", "quantization_config")
_MOST_BUILDS = 400
_FREQUENCIES, _ROTARY = "inv_freq", "rope_parameters"
_TOLERANCE = 1e-6
"""Tolerance relative to the largest output, in float64; some norms still compute in float32."""
_MOST_SHOWN = 3


class NoConfigError(SubmodelError):
    """Error for a sub-model that no config of its architecture describes."""


def is_pretrained(module: nn.Module) -> bool:
    """Whether a module is a model of `transformers`.

    >>> is_pretrained(nn.Identity())
    False
    """
    return any(kind.__name__ == "PreTrainedModel" for kind in type(module).__mro__)


def as_pretrained(small: nn.Module, example: Inputs) -> nn.Module:
    """Convert a sub-model to an equal model that its class makes from a config.

    Args:
        small: sub-model of a model of `transformers`, or the full model; it is not changed.
        example: batch of inputs on which both must compute the same.
    """
    values: dict[str, Any] = small.config.to_dict()  # type: ignore[operator, union-attr]
    general_keys = _general_keys(small)
    fields = _size_fields({key: v for key, v in values.items() if key not in general_keys})

    def build(changes: Changes) -> nn.Module:
        with torch.device("meta"):
            return _make(small, _with_changes(values, changes))

    with only_errors():
        fits, nearest = _search_configs(_measure_sizes(small), fields, build)
    if not fits:
        raise NoConfigError(_no_sizes(small, nearest))
    with wrap_errors("the comparison in double precision fails", NoConfigError):
        outputs = _precise_outputs(_double(small), example)
    reasons = []
    for fit in fits:
        sizes = _with_changes(values, fit.changes)
        for rotary in [None, *_rotary_changes(small, sizes)]:
            config_values = sizes if rotary is None else {**sizes, "rope_parameters": rotary}
            try:
                model = _fill_model(small, config_values)
            except Exception as error:  # the library refuses such a config
                reasons.append(str(error))
                continue
            if _fold_scales(small, model, example, outputs):
                config: Any = model.config
                if isinstance(default := getattr(type(config), "use_cache", None), bool):
                    config.use_cache = default  # disabled for training
                return model
            reasons.append(_what_differs(small, model))
    raise NoConfigError(
        f"{type(small.config).__name__} makes a model of the sub-model's sizes, but with other "
        f"results: {next(filter(None, reversed(reasons)), 'its outputs differ')}"
    )


def first_output(result: Any) -> Tensor:
    """Select the output tensor from a model's return value: its logits, if it has some."""
    logits = getattr(result, "logits", None)
    tensor: Tensor = logits if isinstance(logits, Tensor) else result
    return tensor if isinstance(tensor, Tensor) else result[0]


def _general_keys(small: nn.Module) -> set[str]:
    """Return the keys common to the configs of all architectures; none of them is a size."""
    kinds = type(small.config).__mro__
    base: Any = next(
        kind for kind in kinds if kind.__name__ in ("PreTrainedConfig", "PretrainedConfig")
    )
    return set(base().to_dict())


def _make(small: nn.Module, values: Mapping[str, Any]) -> nn.Module:
    old = small.config
    config = type(old).from_dict(copy.deepcopy(dict(values)))  # type: ignore[union-attr]
    config._attn_implementation = old._attn_implementation  # type: ignore[union-attr]
    model: nn.Module = type(small)(config)
    return model.eval()


def _fill_model(small: nn.Module, values: Mapping[str, Any]) -> nn.Module:
    with seeded(None):
        model = _make(small, values)
    model.to(next(small.parameters()).dtype)
    model.load_state_dict(small.state_dict())
    return model


def _fold_scales(small: nn.Module, model: nn.Module, example: Inputs, outputs: Tensor) -> bool:
    """Fold scales into layers of the model; return whether it then computes the outputs."""
    scales = _differing_scales(small, model)
    weights = copy.deepcopy(model.state_dict())
    for folds in product(*([None, *_folds(model, factors)] for factors in scales.values())):
        for fold in filter(None, folds):
            fold()
        if _is_same(model, example, outputs):
            return True
        model.load_state_dict(weights)
    return False


def _double(module: nn.Module) -> nn.Module:
    copied: Any = copy.deepcopy(module).double().eval()
    if callable(set_experts := getattr(copied, "set_experts_implementation", None)):
        set_experts("eager")  # torch's grouped product does not support double precision
    result: nn.Module = copied
    return result


@torch.no_grad()
def _precise_outputs(module: nn.Module, example: Inputs) -> Tensor:
    with double():  # for constants created in the forward pass
        return first_output(call(module, as_double(example))).double()


def _is_same(model: nn.Module, example: Inputs, outputs: Tensor) -> bool:
    try:
        actual = _precise_outputs(_double(model), example)
    except Exception:  # a model of these shapes that does not run
        return False
    if actual.shape != outputs.shape:
        return False
    return bool((actual - outputs).abs().max() <= _TOLERANCE * outputs.abs().max())


def _no_sizes(small: nn.Module, nearest: Misfit) -> str:
    other_names = [name for name, pair in nearest.tensors.items() if None in pair]
    if other_names:
        return (
            f"the model has other tensors than {type(small).__name__}, as {other_names[0]}: "
            "layers were replaced by model.factorised or adapters"
        )
    examples = [
        f"{name} is {here} in the sub-model and would be {there}"
        for name, (there, here) in list(nearest.tensors.items())[:_MOST_SHOWN]
    ]
    more = len(nearest.tensors) - len(examples)
    return (
        f"no {type(small.config).__name__} makes a model of the sub-model's sizes; the nearest "
        f"({_spell_changes(nearest.changes) or 'the full one'}) differs in {len(nearest.tensors)} "
        f"tensor(s): {'; '.join(examples)}{f'; and {more} more' if more else ''}. Another capacity "
        "may have one: all layers must have equal sizes, and heads often divide the width"
    )


def _what_differs(small: nn.Module, model: nn.Module) -> str:
    """Describe the differences that no layer can compensate: computed tables, or else scales."""
    saved_names, buffers = model.state_dict().keys(), dict(model.named_buffers())
    tables = [
        f"{name} is not saved but computed from the config, while the sub-model has some columns "
        "of the full model's"
        for name, buffer in small.named_buffers()
        if name not in saved_names and not torch.equal(buffer, buffers[name].to(buffer))
    ]
    scales = [
        f"{path}.{name} is {factor:.4g} times as large in the sub-model"
        for name, factors in _differing_scales(small, model).items()
        for path, factor in list(factors.items())[:1]
    ]
    return "; ".join(tables or scales)


def _size_fields(values: Any, path: FieldPath = ()) -> dict[FieldPath, int | None]:
    """Collect the integers and the unset values of a config by path.

    >>> _size_fields({"n_embd": 8, "n_inner": None, "depths": [2, 3], "pad_token_id": 0})
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
        fields |= _size_fields(value, (*path, key))
    return fields


def _with_changes(values: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Copy a config and change values.

    >>> _with_changes({"text": {"width": 8, "depths": [2, 3]}}, {("text", "depths", 1): 5})
    {'text': {'width': 8, 'depths': [2, 5]}}
    """
    result: Any = copy.deepcopy(dict(values))
    for path, value in changes.items():
        table = result
        for key in path[:-1]:
            table = table[key]
        table[path[-1]] = value
    changed_values: dict[str, Any] = result
    return changed_values


def _spell_changes(changes: Changes) -> str:
    """Format changes as text.

    >>> _spell_changes({("n_embd",): 4, ("depths", 1): 5})
    'n_embd = 4, depths.1 = 5'
    """
    return ", ".join(f"{'.'.join(map(str, path))} = {value}" for path, value in changes.items())


@dataclass(frozen=True)
class Misfit:
    """Differences between the model of a config and the sub-model.

    Args:
        changes: changes of the full model's config.
        tensors: differing shapes in the config's model and in the sub-model, by name; None: there
            is no such tensor.
        integers: differing integers in both, by path.
        is_refused: whether the library refuses the config; the differences are then those before
            the last change.
    """

    changes: Changes
    tensors: Mapping[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]]
    integers: Mapping[str, tuple[int, int]]
    is_refused: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key; smaller is better."""
        return len(self.tensors), len(self.integers)

    def steps(self) -> list[tuple[int, int]]:
        """List the distinct pairs of differing sizes, shapes first."""
        pairs: dict[tuple[int, int], None] = {}
        for there, here in self.tensors.values():
            if there is not None and here is not None and len(there) == len(here):
                pairs |= dict.fromkeys(zip(there, here, strict=True))
        pairs |= dict.fromkeys(self.integers.values())
        return [(there, here) for there, here in pairs if there != here and there > 0 < here]


def _measure_sizes(module: nn.Module) -> Sizes:
    """Collect the sizes of a model.

    >>> _measure_sizes(nn.Linear(2, 3))[0]["weight"]
    (3, 2)
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    integers = {
        f"{path}.{name}".removeprefix("."): value
        for path, layer in module.named_modules()
        for name, value in plain_integers(layer).items()
        if not name.startswith("_")
    }
    return shapes, integers


def _compare_sizes(model: nn.Module, small: Sizes, changes: Changes) -> Misfit:
    """Compare the sizes of a config's model with those of the sub-model."""
    (shapes, integers), (small_shapes, small_integers) = _measure_sizes(model), small
    names = dict.fromkeys([*small_shapes, *shapes])
    pairs = {name: (shapes.get(name), small_shapes.get(name)) for name in names}
    return Misfit(
        changes,
        {name: pair for name, pair in pairs.items() if pair[0] != pair[1]},
        {
            name: (integers[name], value)
            for name, value in small_integers.items()
            if name in integers and integers[name] != value
        },
    )


def _search_configs(
    small: Sizes, fields: Mapping[FieldPath, int | None], build: Build
) -> tuple[list[Misfit], Misfit]:
    """Search configs whose models have the sub-model's shapes; return them and the nearest one.

    ``fields`` are the values of the full model's config that may be changed.
    """
    start = _compare_sizes(build({}), small, {})
    order = count()
    waiting = [(start.rank, next(order), start)]
    tried_changes = {frozenset[tuple[FieldPath, int]]()}
    fits, nearest = ([start] if not start.tensors else []), start
    while waiting and len(tried_changes) < _MOST_BUILDS:
        rank, _, misfit = heapq.heappop(waiting)
        if fits and rank > fits[0].rank:
            break  # no waiting config is better
        for path, value in _moves(misfit, fields):
            changes = {**misfit.changes, path: value}
            if (identity := frozenset(changes.items())) in tried_changes:
                continue
            tried_changes.add(identity)
            try:
                next_misfit = _compare_sizes(build(changes), small, changes)
            except Exception:  # the library refuses it; another change may help
                if misfit.is_refused:
                    continue
                next_misfit = replace(misfit, changes=changes, is_refused=True)
            else:
                if replace(next_misfit, changes=misfit.changes) == misfit:
                    continue  # the value does not affect sizes
                nearest = min(nearest, next_misfit, key=lambda each: each.rank)
                if not next_misfit.tensors:
                    fits = sorted([*fits, next_misfit], key=lambda each: each.rank)
            heapq.heappush(waiting, (next_misfit.rank, next(order), next_misfit))
    return [_shorten(fit, small, build) for fit in fits], _shorten(nearest, small, build)


def _shorten(misfit: Misfit, small: Sizes, build: Build) -> Misfit:
    """Remove needless changes."""
    for path in misfit.changes:
        changes = {key: value for key, value in misfit.changes.items() if key != path}
        try:
            shorter = _compare_sizes(build(changes), small, changes)
        except Exception:  # the library refuses it, so the change is needed
            continue
        if replace(shorter, changes=misfit.changes) == misfit:
            misfit = shorter
    return misfit


def _moves(
    misfit: Misfit, fields: Mapping[FieldPath, int | None]
) -> Iterator[tuple[FieldPath, int]]:
    """Yield values that may correct one more size: the size, or a value scaled with it.

    A value may scale inversely, if a number is divided: half as many heads are twice as large.
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


def _rotary_changes(small: nn.Module, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List rotary parameters that may give the frequencies of a sub-model, simplest first.

    Leading frequencies equal those of another base. Any other selection is expressed by LongRoPE,
    with a factor for each. ``values`` is the sub-model's config, with the full model's rotary
    parameters.
    """
    buffers = [
        buffer
        for name, buffer in small.named_buffers()
        if name.rpartition(".")[2] == _FREQUENCIES and buffer.dim() == 1
    ]
    parameters = values.get(_ROTARY)
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
    layers = (layer for layer in small.modules() if hasattr(layer, _FREQUENCIES))
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


def _differing_scales(small: nn.Module, model: nn.Module) -> dict[str, ScaleFactors]:
    """Collect the ratios of differing floats stored by the modules of both, by attribute."""
    factors: dict[str, ScaleFactors] = {}
    layers = dict(model.named_modules())
    for path, layer in small.named_modules():
        others = vars(layers[path])
        for name, value in vars(layer).items():
            other = others.get(name)
            if type(value) is float and type(other) is float and other and other != value:
                factors.setdefault(name, {})[path] = value / other
    return factors


def _folds(model: nn.Module, factors: ScaleFactors) -> Iterator[Callable[[], None]]:
    """Yield functions that multiply the factors into different layers of the model.

    The factor of a module with both a scale and a weight, such as an embedding, goes into that
    weight. If the classifier shares the weight, the norm before it compensates.
    """
    first_layer = model.get_submodule(next(iter(factors)))
    if isinstance(getattr(first_layer, "weight", None), Tensor):
        yield _folding(model, factors, "", None)
        norms = [path for path, layer in model.named_modules() if _is_norm(layer)]
        inverse = {path: 1 / next(iter(factors.values())) for path in norms[-1:]}
        yield _folding(model, factors | inverse, "", None)
    for child, layer in first_layer.named_children():
        weight = getattr(layer, "weight", None)
        if not isinstance(weight, Tensor):
            continue
        yield _folding(model, factors, child, None)
        if any(size % 3 == 0 for size in weight.shape):
            for third in range(3):
                yield _folding(model, factors, child, third)


def _is_norm(layer: nn.Module) -> bool:
    weight = getattr(layer, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 1


def _folding(
    model: nn.Module, factors: ScaleFactors, child: str, third: int | None
) -> Callable[[], None]:
    @torch.no_grad()
    def fold() -> None:
        for path, factor in factors.items():
            layer = model.get_submodule(f"{path}.{child}".strip("."))
            for tensor, dimension in _output_dimensions(layer):
                part = tensor if third is None else tensor.chunk(3, dimension)[third]
                part.mul_(factor)

    return fold


def _output_dimensions(layer: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """Yield weight and bias of a layer with the dimension of its outputs."""
    is_transposed = type(layer).__name__ == "Conv1D"  # of transformers: inputs first
    for name, parameter in layer.named_parameters(recurse=False):
        yield parameter.data, 1 if name == "weight" and is_transposed else 0
