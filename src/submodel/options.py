"""The kinds of values that keys have."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from submodel.amounts import fraction

LARGEST = 10**12  # of a count: what is more was not meant, and some arithmetic would not hold it
Capacity = Annotated[float, BeforeValidator(fraction), Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Positive = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of a configuration: unknown keys are refused, nothing changes.

    Defaults are checked as given values are, so that a key means the same either way: the default
    10 of a key that takes fractions is 10.0. No number of any key is infinite or none at all.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )
