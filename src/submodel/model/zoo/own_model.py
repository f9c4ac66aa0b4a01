"""Models that are not ours: given in Python, made by a factory, or of a Hugging Face config."""

from __future__ import annotations

from typing import Any, NoReturn

from submodel.errors import ConfigError
from submodel.model.zoo.hugging_face import is_config_class, make_plain


class OwnModel:
    """Stands in a configuration for the model that `submodel.train` was given."""

    @classmethod
    def configured(cls, options: object, context: object) -> NoReturn:  # noqa: ARG003
        """Not from a configuration."""
        raise ConfigError(
            ["model.name: 'own' stands for what submodel.train(model, data) is given in Python"]
        )


def as_module(component: Any) -> Any:
    """The model of a Hugging Face configuration that a factory made, as it is; nothing is fetched.

    Anything else stays what it is.
    """
    return make_plain(component) if is_config_class(type(component)) else component
