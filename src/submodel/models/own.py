"""Models that are not ours: a factory named ``package.module:name``, or a Hugging Face config."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from submodel.errors import ConfigError


def is_path(name: str) -> bool:
    """Whether a model's name is a path to code.

    >>> is_path("my_package.nets:make"), is_path("cnn")
    (True, False)
    """
    return ":" in name


def find(path: str) -> Callable[..., Any]:
    """What ``package.module:name`` names; modules of the working folder count too."""
    module_name, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            [f"model.name: {path!r}: cannot import {module_name!r}: {error}"]
        ) from None
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError([f"model.name: {path!r}: {module_name!r} has no {part!r}"])
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError([f"model.name: {path!r} is a {type(found).__name__}, not a factory"])
    return found


def make(path: str, options: Mapping[str, Any]) -> nn.Module:
    """The module that the factory at ``path`` makes, called with ``options``.

    A Hugging Face configuration class stands for the causal language model, or failing that the
    plain model, of that configuration; no weights are fetched.

    >>> make("torch.nn:Linear", {"in_features": 2, "out_features": 3})
    Linear(in_features=2, out_features=3, bias=True)
    """
    factory = find(path)
    try:
        made = factory(**options)
    except TypeError as error:
        raise ConfigError(
            [f"model.options: {path!r} was called with {dict(options)}: {error}"]
        ) from None
    if _is_hugging_face_config(made):
        return _from_hugging_face(made)
    if not isinstance(made, nn.Module):
        raise ConfigError([f"model.name: {path!r} made a {type(made).__name__}, not an nn.Module"])
    return made


def _is_hugging_face_config(made: object) -> bool:
    return any(kind.__name__ == "PretrainedConfig" or kind.__name__ == "PreTrainedConfig"
               for kind in type(made).__mro__)  # fmt: skip


def _from_hugging_face(config: Any) -> nn.Module:
    import transformers

    auto: Any = transformers
    try:
        model: nn.Module = auto.AutoModelForCausalLM.from_config(config)
    except ValueError:  # this architecture has no causal language model
        model = auto.AutoModel.from_config(config)
    return model
