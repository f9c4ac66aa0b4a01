"""FedProx: clients are held near the model that they were sent (Li et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from submodel.local.optimisers import Gradients, Optimiser, Slots


@dataclass(frozen=True)
class Proximal:
    """Another optimiser on the objective f(w) + (mu / 2) ||w - w_r||^2, w_r being what was sent.

    >>> from submodel.local.sgd import Sgd
    >>> w = [torch.tensor([1.0])]
    >>> proximal = Proximal(Sgd(), mu=0.5)
    >>> slots = proximal.begin(w)
    >>> for _ in range(2):
    ...     proximal.step(w, [torch.tensor([1.0])], slots, 0.1)
    >>> w
    [tensor([0.8050])]
    """

    optimiser: Optimiser
    mu: float

    @property
    def slots_of_round(self) -> int:
        """The model that was sent is another one in every round."""
        return 1 + int(getattr(self.optimiser, "slots_of_round", 0))

    @property
    def copies(self) -> int:
        """The model that was sent, and what the other one keeps."""
        return 1 + self.optimiser.copies

    @property
    def whole_tensors(self) -> bool:
        """As the other one."""
        return bool(getattr(self.optimiser, "whole_tensors", False))

    def begin(self, parameters: Sequence[Tensor]) -> Slots:
        """The parameters as they are now, then the slots of the other one."""
        return [[p.detach().clone() for p in parameters], *self.optimiser.begin(parameters)]

    @torch.no_grad()
    def step(
        self, parameters: Sequence[Tensor], gradients: Gradients, slots: Slots, lr: float
    ) -> None:
        """The gradient has mu (w - w_r) in addition."""
        start, *others = slots
        nearer = [
            None if gradient is None else gradient + self.mu * (parameter - begin)
            for parameter, gradient, begin in zip(parameters, gradients, start, strict=True)
        ]
        self.optimiser.step(parameters, nearer, others, lr)

    def plain(self) -> Optimiser:
        """The output step begins where its clients are: the term is nought there."""
        return self.optimiser.plain()
