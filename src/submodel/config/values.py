"""The kinds of values that keys have."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from submodel.units import fraction

Capacity = Annotated[float, BeforeValidator(fraction), Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of a configuration: unknown keys are refused, nothing changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
