"""Models that are not ours: given in Python, made by a factory, or of a Hugging Face config."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import nn

from submodel.errors import ConfigError


class OwnModel:
    """Stands in a configuration for the model that `submodel.train` was given."""

    @classmethod
    def configured(cls, options: object, context: object) -> NoReturn:  # noqa: ARG003
        """Not from a configuration."""
        raise ConfigError(
            ["model.name: 'own' stands for what submodel.train(model, data) is given in Python"]
        )


def as_module(component: Any) -> Any:
    """The model of a Hugging Face configuration: causal, or failing that plain; nothing is fetched.

    Anything else stays what it is.
    """
    return _from_hugging_face(component) if _is_hugging_face_config(component) else component


def _is_hugging_face_config(component: object) -> bool:
    return any(kind.__name__ == "PretrainedConfig" or kind.__name__ == "PreTrainedConfig"
               for kind in type(component).__mro__)  # fmt: skip


def _from_hugging_face(config: Any) -> nn.Module:
    import transformers

    auto: Any = transformers
    try:
        model: nn.Module = auto.AutoModelForCausalLM.from_config(config)
    except ValueError:  # this architecture has no causal language model
        model = auto.AutoModel.from_config(config)
    return model
