"""Models that are not ours: a factory named ``package.module:name``, or a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from submodel.errors import ConfigError
from submodel.plugins import find


def make(path: str, options: Mapping[str, Any]) -> nn.Module:
    """The module that the factory at ``path`` makes, called with ``options``.

    A Hugging Face configuration class stands for the causal language model, or failing that the
    plain model, of that configuration; no weights are fetched.

    >>> make("torch.nn:Linear", {"in_features": 2, "out_features": 3})
    Linear(in_features=2, out_features=3, bias=True)
    """
    factory = find(path, "model.name")
    try:
        made = factory(**options)
    except TypeError as error:
        raise ConfigError(
            [f"model.options: {path!r} was called with {dict(options)}: {error}"]
        ) from None
    except Exception as error:  # whatever the factory's own code raises
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError([f"model.name: {path!r} fails: {reason}"]) from error
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
