"""Losses by name: ours, and where their code is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.plugins import Kind, Offer

if TYPE_CHECKING:
    from submodel.tasks.loss import Loss

LOSSES: Kind[Loss] = Kind(
    noun="loss",
    key="task.loss",
    group="submodel.losses",
    wants="a loss: a function of (outputs, targets)",
    is_one=callable,
    is_function=True,
    offers={
        "cross-entropy": Offer("torch.nn.functional:cross_entropy", "of class labels"),
        "squared-error": Offer("torch.nn.functional:mse_loss", "the mean over all outputs"),
        "absolute-error": Offer("torch.nn.functional:l1_loss", "the mean over all outputs"),
    },
)
