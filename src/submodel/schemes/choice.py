"""The section of a configuration that chooses a scheme."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from submodel.options import Capacity, Count, Positive, Section
from submodel.schemes import registry


class SchemeChoice(Section):
    """The rule that draws the cuts."""

    name: str = Field("rolling", description="; ".join(registry.descriptions()))
    order: Literal["shuffled", "sequential"] = Field(
        "shuffled", description="rolling: one permutation per epoch (the paper) or FedRolex's order"
    )
    windows: Count | None = Field(
        None,
        description="rolling: R, windows per epoch (default: one per unit of the largest axis)",
    )
    sampling: Literal["bernoulli", "fixed"] = Field(
        "bernoulli",
        description="random, unbiased: every unit with probability p, or exactly the share",
    )
    granularity: Literal["unit", "coordinate"] = Field(
        "unit", description="cut whole units (smaller tensors) or single weights (masks)"
    )
    alignment: Literal["residual", "independent"] = Field(
        "residual",
        description="independent: every convolution draws its own channels, as in FedRolex's code; "
        "not a valid cut, to reproduce published results (random, fixed, unit, preresnet)",
    )
    widths: list[Capacity] | None = Field(
        None, min_length=1, description="ordered: what steps draw from (default: the capacities)"
    )
    distill: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="ordered: alpha, how much narrower widths learn from the widest; 0: not"
    )
    sequence: str = Field("random", description="masked-sgd: the scheme whose masks are used")
    scope: Literal["axis", "global"] | None = Field(
        None,
        description="importance: the largest of every axis (weights: of every tensor), or of all "
        "(default: units axis; weights global, as FIARSE)",
    )
    every: Count | None = Field(
        None,
        description="partition: rounds between redraws (default 1); hierarchical: between joins "
        "(5); pruned: between adaptations (5)",
    )
    cells: Count = Field(4, description="hierarchical: cells of clients, and parts of the model")
    prunable: Annotated[float, Field(ge=0, le=1)] = Field(
        0.3, description="pruned: the share of a tensor's weights that may leave in an adaptation"
    )
    base_cost: Positive = Field(
        0.5,
        description="pruned: what a round costs whatever is pruned, in costs of the whole model "
        "(by the times in PruneFL's code: 0.14 and 0.71)",
    )
    reentry: Literal["zero", "kept"] = Field(
        "zero",
        description="pruned: with what a weight comes back: zero, or (PruneFL's code) the value "
        "that it left with",
    )
    options: dict[str, Any] = Field({}, description="keyword arguments of an own scheme")

    @field_validator("name", "sequence")
    @classmethod
    def _known(cls, name: str, info: ValidationInfo) -> str:
        without = "masked-sgd" if info.field_name == "sequence" else None  # it has no own masks
        if not registry.is_scheme(name) or name == without:
            names = [n for n in registry.names() if n != without]
            raise PydanticCustomError(
                "literal_error", "", {"expected": " or ".join(map(repr, names))}
            )
        return name
