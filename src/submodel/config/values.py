"""The kinds of values that keys have."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from submodel.errors import ConfigError


def fraction(value: object) -> object:
    """Let a capacity be written as "1/16"."""
    if isinstance(value, str):
        try:
            return float(Fraction(value))
        except (ValueError, ZeroDivisionError):
            return value
    return value


def parse_capacity(text: str) -> float:
    """A capacity as people write it.

    >>> parse_capacity("1/4")
    0.25
    """
    value = fraction(text.strip())
    if not isinstance(value, float) or not 0 < value <= 1:
        raise ConfigError([f"capacity: {text} is not in (0, 1]"])
    return value


Capacity = Annotated[float, BeforeValidator(fraction), Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of a configuration: unknown keys are refused, nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
