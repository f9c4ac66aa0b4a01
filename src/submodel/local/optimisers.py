"""What an optimiser is, and those that a configuration can name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

Gradients = Sequence[Tensor | None]
"""Of the trained parameters, in their order; None where the loss does not depend on one."""
Slots = Sequence[Sequence[Tensor]]
"""What an optimiser keeps: some tensors of the shape of each parameter, in their order."""


class Optimiser(Protocol):
    """Moves parameters along their gradients, weight by weight.

    A client's optimiser begins afresh in every round, or, with ``local.optimiser_state = "kept"``,
    with the slots of its last one: they must have the shapes of the parameters, or stretch to
    them. An optimiser whose first slots are of a round alone has their number as
    ``slots_of_round``. Clients of equal shape are trained as one
    tensor, so a step must treat every weight by itself: nothing may be summed over a tensor. One
    that does has ``whole_tensors = True``, and its clients step one after another.
    """

    @property
    def copies(self) -> int:
        """How many values it keeps for every weight: what `submodel plan` reckons with."""
        ...

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """What it keeps, at the start: ``copies`` lists."""
        ...

    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """Change parameters and slots in place."""
        ...

    def plain(self) -> Optimiser:
        """One that takes a gradient step of the same objective, for the algorithms' output."""
        ...
