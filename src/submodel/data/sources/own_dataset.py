"""What is given in Python: there is nothing to make."""

from __future__ import annotations

from typing import NoReturn

from submodel.errors import ConfigError


class OwnDataset:
    """Stands in a configuration for data that `submodel.train` was given."""

    @classmethod
    def configured(cls, options: object, context: object) -> NoReturn:  # noqa: ARG003
        """Not from a configuration."""
        raise ConfigError(
            ["data.name: 'own' stands for what submodel.train(model, data) is given in Python"]
        )
