"""Models from outside: given in Python, or made from a config class of `transformers`.

The model of a class such as ``transformers:GPT2Config`` is made for the data: sizes that the
options do not give (vocabulary, positions, labels) follow from it. Weights are random; nothing is
downloaded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import nn

from submodel.core.errors import ConfigError, refuse
from submodel.core.options import FreeOptions
from submodel.model.zoo import ModelContext

_BASES = ("PretrainedConfig", "PreTrainedConfig")
_POSITIONS = ("max_position_embeddings", "n_positions")
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")
_COUNT_AFTER_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet")
"""Architectures whose first position is the one after the padding token's number."""


def is_config_class(thing: object) -> bool:
    """Return whether an object is a config class of `transformers`."""
    return isinstance(thing, type) and any(kind.__name__ in _BASES for kind in thing.__mro__)


def as_component(target: Any) -> Any:
    """Wrap a config class in a component that makes its model; return anything else unchanged."""
    return ConfiguredModel(target) if is_config_class(target) else target


@contextmanager
def only_errors() -> Iterator[None]:
    """Silence warnings of `transformers` about intermediate configs.

    One example is the warning about default tokens beyond a small vocabulary, which are corrected
    afterwards.

    >>> with only_errors():
    ...     logging.getLogger("transformers").isEnabledFor(logging.WARNING)
    False
    """
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclass(frozen=True)
class ConfiguredModel:
    """The component of a config class."""

    config_class: Any
    Options = FreeOptions

    def __call__(self) -> None:
        """Components are callable; this one is made by `configured`."""

    def configured(self, options: FreeOptions, context: ModelContext) -> nn.Module:
        """Make the model for the data's task."""
        values = options.options
        with only_errors():
            config = self.config_class(**values)
        problems = [*self._unknown_keys(values), *fit_config(config, values, context)]
        refuse(problems)
        return make_for_task(config, context)

    def _unknown_keys(self, values: Mapping[str, Any]) -> list[str]:
        """Problems for keys that `transformers` would store without using them."""
        try:
            defaults = self.config_class()
        except Exception:  # a class without defaults checks its keys itself
            return []
        return [
            f"model.options.{key}: {self.config_class.__name__} has no such key"
            for key in values
            if not hasattr(defaults, key) or callable(getattr(defaults, key))
        ]


def fit_config(config: Any, values: Mapping[str, Any], context: ModelContext) -> list[str]:
    """Set the sizes of the data in a config; return the problems of sizes given by the user."""
    problems = []
    if values.get("use_cache"):
        problems.append("model.options.use_cache: training needs no cache; remove the key")
    config.use_cache = False
    if context.vocabulary is not None:
        problems += _fit_size(config, values, ("vocab_size",), context.vocabulary, "tokens")
        problems += _fit_special_tokens(config, values)
        length = context.inputs[0]
        if config.model_type in _COUNT_AFTER_PADDING:
            length += (config.pad_token_id or 0) + 1
        problems += _fit_size(config, values, _POSITIONS, length, "positions")
    if context.task in ("classification", "regression"):
        keys = ("num_labels", "id2label", "label2id")
        noun = "classes" if context.task == "classification" else "targets"
        problems += _fit_size(config, values, keys, context.classes, noun)
    if context.task == "language" and "is_decoder" not in values:
        config.is_decoder = True  # otherwise encoders would see the tokens to predict
    if len(context.inputs) == 3:
        channels, height, _ = context.inputs
        problems += _fit_size(config, values, ("num_channels",), channels, "channels")
        problems += _fit_size(config, values, ("image_size",), height, "rows of pixels")
    return problems


def _fit_size(
    config: Any, values: Mapping[str, Any], keys: tuple[str, ...], size: int, noun: str
) -> list[str]:
    """Set the first key that the config has, unless the user gave a value that is large enough."""
    present = [key for key in keys if hasattr(config, key)]
    if not present:
        return []
    for key in keys:
        if key in values:
            count = getattr(config, "num_labels" if "num_labels" in keys else key)
            if isinstance(count, int) and count < size:
                return [f"model.options.{key}: {count} is too small for the data's {size} {noun}"]
            return []
    setattr(config, present[0], size)
    return []


def _fit_special_tokens(config: Any, values: Mapping[str, Any]) -> list[str]:
    """Reset default special tokens beyond the vocabulary; return problems for given ones."""
    problems = []
    for key in _TOKENS:
        token = getattr(config, key, None)
        if not isinstance(token, int) or token < config.vocab_size:
            continue
        if key in values:
            problems.append(
                f"model.options.{key}: {token} is not one of the {config.vocab_size} tokens"
            )
        else:
            setattr(config, key, None)
    return problems


def make_for_task(config: Any, context: ModelContext) -> nn.Module:
    """Make the architecture's model for the data's task; without a task, see `make_plain`."""
    import transformers

    auto: Any = transformers
    if context.task is None:
        return make_plain(config)
    if context.task == "language":
        name = "AutoModelForCausalLM"
    elif len(context.inputs) == 3:
        name = "AutoModelForImageClassification"
    else:
        name = "AutoModelForSequenceClassification"
    factory = getattr(auto, name)
    if type(config) not in factory._model_mapping:
        raise ConfigError(
            f"model.name: data for {context.task} needs a {name.removeprefix('AutoModelFor')} "
            f"model, which transformers does not have for {type(config).__name__}"
        )
    model: nn.Module = factory.from_config(config)
    return model


def make_plain(config: Any) -> nn.Module:
    """Make the causal language model of a config, or the plain model if there is none."""
    import transformers

    auto: Any = transformers
    try:
        model: nn.Module = auto.AutoModelForCausalLM.from_config(config)
    except ValueError:  # this architecture has no causal language model
        model = auto.AutoModel.from_config(config)
    return model


class OwnModel:
    """The placeholder in a configuration for the model passed to `submodel.train`."""

    @classmethod
    def configured(cls, options: object, context: object) -> NoReturn:  # noqa: ARG003
        """Raise `ConfigError`: the model cannot be made from a configuration."""
        raise ConfigError(
            "model.name: 'own' stands for the model passed to submodel.train(model, data) in Python"
        )


def as_module(component: Any) -> Any:
    """The model of a Hugging Face config that a factory returned; anything else is unchanged."""
    return make_plain(component) if is_config_class(type(component)) else component
