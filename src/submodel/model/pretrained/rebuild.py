"""The model that a config of `transformers` makes, with the values of a sub-model, proved equal."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from submodel.errors import SubmodelError
from submodel.model.axes.trial import as_double, double
from submodel.model.inputs import Inputs, call
from submodel.model.pretrained.config_search import Misfit, measure_sizes, search_configs
from submodel.model.pretrained.config_values import (
    Changes,
    size_fields,
    spell_changes,
    with_changes,
)
from submodel.model.pretrained.rotary import rotary_changes
from submodel.model.pretrained.scales import differing_scales, ways_to_fold
from submodel.model.seeding import seeded
from submodel.model.zoo.hugging_face import only_errors

_TOLERANCE = 1e-6
"""In float64, of the largest output: norms of `transformers` compute in float32 all the same."""
_MOST_SHOWN = 3


class NoConfigError(SubmodelError):
    """A sub-model that no config of its architecture describes."""


def is_pretrained(module: nn.Module) -> bool:
    """Whether this is a model of `transformers`.

    >>> is_pretrained(nn.Identity())
    False
    """
    return any(kind.__name__ == "PreTrainedModel" for kind in type(module).__mro__)


def as_pretrained(small: nn.Module, example: Inputs) -> nn.Module:
    """The sub-model as its architecture's class makes it of a config of its own.

    Args:
        small: a cut of a model of `transformers`, or all of it; it is not changed.
        example: a batch of inputs, on which both must compute the same.
    """
    values: dict[str, Any] = small.config.to_dict()  # type: ignore[operator, union-attr]
    general_keys = _general_keys(small)
    fields = size_fields({key: v for key, v in values.items() if key not in general_keys})
    with only_errors():
        fits, nearest = search_configs(
            measure_sizes(small), fields, lambda changes: _empty(small, values, changes)
        )
    if not fits:
        raise NoConfigError(_no_sizes(small, nearest))
    try:
        outputs = _outputs(_double(small), example)
    except Exception as error:  # of its own code, in a precision that it may not know
        raise NoConfigError(
            "it is compared in double precision, and does not run there: "
            f"{type(error).__name__}: {error}"
        ) from error
    reasons = []
    for fit in fits:
        sizes = with_changes(values, fit.changes)
        for rotary in [None, *rotary_changes(small, sizes)]:
            config_values = sizes if rotary is None else {**sizes, "rope_parameters": rotary}
            try:
                model = _fill_model(small, config_values)
            except Exception as error:  # the library refuses such a config
                reasons.append(str(error))
                continue
            if _fold_scales(small, model, example, outputs):
                return _with_cache(model)
            reasons.append(_what_differs(small, model))
    raise NoConfigError(
        f"{_class_name(small)} makes a model of the sub-model's sizes that computes something "
        f"else: {next(filter(None, reversed(reasons)), 'its outputs differ')}"
    )


def _with_cache(model: nn.Module) -> nn.Module:
    """Let it use a cache as its architecture does, which training has no use for."""
    config: Any = model.config
    default = getattr(type(config), "use_cache", None)
    if isinstance(default, bool):
        config.use_cache = default
    return model


def first_output(result: Any) -> Tensor:
    """The tensor of outputs among what a model returns: its logits, where it has some."""
    logits = getattr(result, "logits", None)
    tensor: Tensor = logits if isinstance(logits, Tensor) else result
    return tensor if isinstance(tensor, Tensor) else result[0]


def _general_keys(small: nn.Module) -> set[str]:
    """The keys that the configs of all architectures have; none of them is a size."""
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


def _empty(small: nn.Module, values: Mapping[str, Any], changes: Changes) -> nn.Module:
    with torch.device("meta"):
        return _make(small, with_changes(values, changes))


def _fill_model(small: nn.Module, values: Mapping[str, Any]) -> nn.Module:
    with seeded(None):
        model = _make(small, values)
    model.to(next(small.parameters()).dtype)
    model.load_state_dict(small.state_dict())
    return model


def _fold_scales(small: nn.Module, model: nn.Module, example: Inputs, outputs: Tensor) -> bool:
    """Whether the model computes these outputs, with scales put where they belong."""
    scales = differing_scales(small, model)
    weights = copy.deepcopy(model.state_dict())
    for folds in product(*([None, *ways_to_fold(model, factors)] for factors in scales.values())):
        for fold in filter(None, folds):
            fold()
        if _is_same(model, example, outputs):
            return True
        model.load_state_dict(weights)
    return False


def _double(module: nn.Module) -> nn.Module:
    copied: Any = copy.deepcopy(module).double().eval()
    if callable(set_experts := getattr(copied, "set_experts_implementation", None)):
        set_experts("eager")  # torch's product in groups knows no double precision
    result: nn.Module = copied
    return result


@torch.no_grad()
def _outputs(module: nn.Module, example: Inputs) -> Tensor:
    with double():  # constants that a forward makes
        return first_output(call(module, as_double(example))).double()


def _is_same(model: nn.Module, example: Inputs, outputs: Tensor) -> bool:
    try:
        actual = _outputs(_double(model), example)
    except Exception:  # a model of these shapes that does not run
        return False
    if actual.shape != outputs.shape:
        return False
    return bool((actual - outputs).abs().max() <= _TOLERANCE * outputs.abs().max())


def _class_name(small: nn.Module) -> str:
    return type(small.config).__name__


def _no_sizes(small: nn.Module, nearest: Misfit) -> str:
    other_names = [name for name, pair in nearest.tensors.items() if None in pair]
    if other_names:
        return (
            f"the model has other tensors than {type(small).__name__} has, as {other_names[0]}: "
            "layers were replaced, by model.factorised or adapters"
        )
    examples = [
        f"{name} is {here} in the sub-model and would be {there}"
        for name, (there, here) in list(nearest.tensors.items())[:_MOST_SHOWN]
    ]
    more = len(nearest.tensors) - len(examples)
    return (
        f"no {_class_name(small)} makes a model of the sub-model's sizes; the nearest "
        f"({spell_changes(nearest.changes) or 'the full one'}) differs in {len(nearest.tensors)} "
        f"tensor(s): {'; '.join(examples)}{f'; and {more} more' if more else ''}. Another capacity "
        "may have one: all layers must keep equal sizes, and heads often share out the width"
    )


def _what_differs(small: nn.Module, model: nn.Module) -> str:
    """What no layer can make up for: computed tables first, then scales."""
    saved_names, buffers = model.state_dict().keys(), dict(model.named_buffers())
    tables = [
        f"{name} is not saved but computed from the config, and the sub-model has some columns of "
        "the full model's"
        for name, buffer in small.named_buffers()
        if name not in saved_names and not torch.equal(buffer, buffers[name].to(buffer))
    ]
    scales = [
        f"{path}.{name} is {factor:.4g} times as large in the sub-model"
        for name, factors in differing_scales(small, model).items()
        for path, factor in list(factors.items())[:1]
    ]
    return "; ".join(tables or scales)
