"""A trained model as a folder that `from_pretrained` of `transformers` loads, and its tokeniser.

The folder has the model that a config of its own makes, with the values of the sub-model, proved
to compute the same. A sub-model stores scales as numbers, such as the full model's 1/sqrt(size of a
head), where that model would store others, of the small head. The quotient of the two goes into a
layer, most often that of the queries: which one is tried.
"""

from __future__ import annotations

import copy
import importlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from submodel.errors import SubmodelError
from submodel.model.axes.verify import as_double, double
from submodel.model.inputs import Inputs, call
from submodel.model.zoo.hugging_face import only_errors
from submodel.prepare.findings import without_selection
from submodel.randomness import seeded
from submodel.runs.pretrained_config import (
    Changes,
    Misfit,
    measure_sizes,
    rotary_changes,
    search_configs,
    size_fields,
    spell_changes,
    with_changes,
)

_LOADED_TOLERANCE = 1e-4
"""Of the largest output, in the model's own precision: scales move digits from layer to layer."""


def write_pretrained(module: nn.Module, example: Inputs, tokens: str | None, out: Path) -> Path:
    """Write the model and see that it computes the same when it is loaded; returns its weights.

    Args:
        module: of `transformers`, or the sub-model of one; its logits may have been selected.
        example: a batch of inputs for the comparison.
        tokens: the tokeniser, as `submodel.data.text.tokens.read_tokens` reads it, if there is one.
        out: the folder, which is there; nothing is written to it unless all is well.
    """
    module = without_selection(module)
    if not is_pretrained(module):
        raise SubmodelError(
            f"export: format 'huggingface' is for models of transformers, not for a "
            f"{type(module).__name__}; 'safetensors' is for any model"
        )
    try:
        model: Any = as_pretrained(module, example)
    except SubmodelError as error:
        raise SubmodelError(f"export: format 'huggingface': {error}") from None
    with tempfile.TemporaryDirectory(dir=out, prefix=".partial-") as name, _quietly():
        partial = Path(name)
        model.save_pretrained(partial)
        difference = _difference(model, partial, module, example)
        if difference and getattr(model, "_keys_to_ignore_on_save", None):
            # tables that a config computes, as of sinusoids: the sub-model has columns of the whole
            model._keys_to_ignore_on_save = None
            model.save_pretrained(partial)
            difference = _difference(model, partial, module, example)
        if difference:
            raise SubmodelError(
                f"export: format 'huggingface': when it is loaded, outputs differ by "
                f"{difference:.3g}"
            )
        _write_tokeniser(tokens, partial)
        for file in partial.iterdir():
            file.replace(out / file.name)
    return out / "model.safetensors"


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's progress bars, which tell of files."""
    logging: Any = importlib.import_module("transformers.utils.logging")
    had_bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bars:
            logging.enable_progress_bar()


@torch.no_grad()
def _difference(model: Any, folder: Path, module: nn.Module, example: Inputs) -> float:
    """How far outputs of the loaded model are from those of the sub-model; zero up to rounding."""
    loaded_model = type(model).from_pretrained(folder, local_files_only=True).eval()
    sub_outputs = first_output(call(module, example))
    try:
        outputs = first_output(call(loaded_model, example))
    except Exception as error:  # of its own code, as of kernels that want widths of 16 bytes
        raise SubmodelError(
            "export: format 'huggingface': the library loads the model and cannot run it: "
            f"{type(error).__name__}: {error}; another capacity may have sizes that it can"
        ) from error
    difference = float((outputs - sub_outputs).abs().max())
    return 0.0 if difference <= _LOADED_TOLERANCE * float(sub_outputs.abs().max()) else difference


def _write_tokeniser(tokens: str | None, folder: Path) -> None:
    """Write the JSON of a tokeniser of the package ``tokenizers``; ours have none."""
    description = None if tokens is None else json.loads(tokens).get("tokenizer")
    if description is None:
        return
    (folder / "tokenizer.json").write_text(json.dumps(description), "utf-8")
    about = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about) + "\n", "utf-8")


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
        outputs = _precise_outputs(_double(small), example)
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
def _precise_outputs(module: nn.Module, example: Inputs) -> Tensor:
    with double():  # constants that a forward makes
        return first_output(call(module, as_double(example))).double()


def _is_same(model: nn.Module, example: Inputs, outputs: Tensor) -> bool:
    try:
        actual = _precise_outputs(_double(model), example)
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


ScaleFactors = dict[str, float]
"""By the path of a module: what the sub-model's scale is times that of the config's model."""


def stored_floats(layer: nn.Module) -> dict[str, float]:
    """The attributes of one module that may be scales.

    >>> net = nn.Identity()
    >>> net.scaling = 0.5
    >>> stored_floats(net)
    {'scaling': 0.5}
    """
    return {name: value for name, value in vars(layer).items() if type(value) is float}


def differing_scales(small: nn.Module, model: nn.Module) -> dict[str, ScaleFactors]:
    """The scales that differ, by the name of the attribute.

    Args:
        small: the sub-model.
        model: of the same architecture, as a config makes it.
    """
    factors: dict[str, ScaleFactors] = {}
    layers = dict(model.named_modules())
    for path, layer in small.named_modules():
        other_values = stored_floats(layers[path])
        for name, value in stored_floats(layer).items():
            other = other_values.get(name)
            if other and other != value:
                factors.setdefault(name, {})[path] = value / other
    return factors


def ways_to_fold(model: nn.Module, factors: ScaleFactors) -> Iterator[Callable[[], None]]:
    """Where the factors may go: functions that put them into layers of the model.

    A module that has a scale and a weight itself, as a table of words, takes its factor there. If
    the classifier shares that weight, the norm before it makes up for that.

    Args:
        model: as a config makes it; the functions change it.
        factors: by the path of a module, all of one kind.
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
    """Weight and bias of a layer, and which of their dimensions is that of its outputs."""
    is_transposed = type(layer).__name__ == "Conv1D"  # of transformers: inputs first
    for name, parameter in layer.named_parameters(recurse=False):
        yield parameter.data, 1 if name == "weight" and is_transposed else 0
