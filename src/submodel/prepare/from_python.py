"""A configuration for a model and data that are given in Python."""

from __future__ import annotations

from submodel.config import Config
from submodel.errors import ConfigError
from submodel.options import Section


def as_own(config: Config, model: bool = True, data: bool = True) -> Config:
    """The configuration with "own" in the place of model and data.

    Raises `ConfigError` where it names or describes others, which would be ignored.

    Args:
        config: the configuration.
        model: whether a model is given in Python.
        data: whether data is.

    >>> from submodel.config import parse
    >>> as_own(parse({"model": {"factorised": True}})).model.name
    'own'
    >>> as_own(parse({"model": {"name": "mlp", "width": 8}}))
    Traceback (most recent call last):
    submodel.errors.ConfigError: model.name: 'mlp' is given, and a model in Python; leave one out
    model.width: goes with the models of a configuration, not with one that is given in Python
    """
    kinds = {"model": "models"} if model else {}
    kinds |= {"data": "data sources"} if data else {}
    problems = [
        problem
        for name, kind in kinds.items()
        for problem in _unused_settings(name, kind, getattr(config, name))
    ]
    if problems:
        raise ConfigError(problems)
    sections = {name: getattr(config, name).with_values(name="own") for name in kinds}
    return config.model_copy(update=sections)


def _unused_settings(name: str, kinds: str, section: Section) -> list[str]:
    """What was set of a section that means nothing for what is given."""
    after = type(section.with_values(name="own")).model_fields
    problems = []
    for key in type(section).model_fields:
        if key not in section.model_fields_set:
            continue
        value = getattr(section, key)
        if key == "name" and value != "own":
            problems.append(
                f"{name}.name: {value!r} is given, and {_article(name)} in Python; leave one out"
            )
        elif key not in after:
            problems.append(
                f"{name}.{key}: goes with the {kinds} of a configuration, not with one that is "
                "given in Python"
            )
    return problems


def _article(name: str) -> str:
    return name if name == "data" else f"a {name}"
