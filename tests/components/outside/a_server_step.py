"""A server step with a memory: a full first step, then ever shorter steps."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from submodel.core import Capacity, Section

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Slowing:
    keep: float

    class Options(Section):
        keep: Capacity = Field(0.5, description="a step as a share of the one before")

    def begin(self, parameters: Tensors) -> dict[str, Tensor]:
        return {"share": torch.ones((), dtype=torch.float64)}

    def step(
        self, old: Tensors, target: Tensors, coverage: Tensors, memory: Tensors
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        share = float(memory["share"])
        new = {n: (w.double() + share * (target[n].double() - w)).to(w) for n, w in old.items()}
        return new, {"share": memory["share"] * self.keep}
