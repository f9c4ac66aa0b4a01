"""What a loss is, and the losses that a configuration can name."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from submodel.plugins import Kind, Offer

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean loss over the batch.

Where not all examples count alike, ``loss.count(targets)``, if it has that, tells how many terms it
is the mean of (`submodel.tasks.counting`)."""

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
