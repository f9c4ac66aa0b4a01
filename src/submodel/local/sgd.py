"""Steps of SGD, for one client or many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from submodel.local.work import LocalWork
from submodel.options import Decay, Section

Gradients = Sequence[Tensor | None]


def clipped(gradients: Gradients, largest: float, clients: int = 1) -> list[Tensor | None]:
    """Scale the gradient of each of ``clients`` (first dimension: clients x rows) to a norm.

    >>> clipped([torch.tensor([3.0, 4.0]), None], 1.0)
    [tensor([0.6000, 0.8000]), None]
    """
    apart = [None if g is None else g.reshape(clients, -1) for g in gradients]
    norms = [torch.linalg.vector_norm(g, dim=1) for g in apart if g is not None]
    total = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    factor = (largest / (total + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_
    scaled = (None if g is None else g * factor[:, None] for g in apart)
    return [
        None if s is None or g is None else s.view(g.shape)
        for s, g in zip(scaled, gradients, strict=True)
    ]


@torch.no_grad()
def sgd(
    parameters: Sequence[Tensor], found: Gradients, momenta: Sequence[Tensor], work: LocalWork
) -> None:
    """One step of SGD, as `torch.optim.SGD` takes it, with a fraction of its overhead.

    ``momenta`` begin as zeros; empty without momentum. A parameter without gradient stays.
    """
    used = [i for i, gradient in enumerate(found) if gradient is not None]
    gradients = [gradient for gradient in found if gradient is not None]
    moved = [parameters[i] for i in used]
    if work.weight_decay:
        gradients = list(torch._foreach_add(gradients, moved, alpha=work.weight_decay))
    if momenta:
        kept = [momenta[i] for i in used]
        torch._foreach_mul_(kept, work.momentum)
        torch._foreach_add_(kept, gradients)
        gradients = kept
    torch._foreach_add_(moved, gradients, alpha=-work.lr)


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    class Options(Section):
        """The keys of ``sgd``."""

        momentum: Decay = Field(0.9, description="SGD momentum")
        weight_decay: Annotated[float, Field(ge=0)] = Field(0.0, description="L2 decay")
