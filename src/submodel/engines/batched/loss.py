"""The losses of a stack of clients, each its own mean over what counts in its batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from submodel.algorithm.types import Setup, Task
from submodel.engines.batched.layer_kernels import TORCH_KERNELS, LayerKernels
from submodel.tasks.classification import smoothing_of
from submodel.tasks.counting import value_of
from submodel.tasks.language import TokenCrossEntropy
from submodel.tasks.logits import NO_LABEL, flat_logits


class StackedLoss:
    """Every client's mean loss over its batch, and what it is the mean of.

    The cross-entropy of all clients' labels, or of all their tokens, is computed in one piece.
    """

    def __init__(
        self,
        setup: Setup,
        tasks: Sequence[Task],
        device: torch.device,
        kernels: LayerKernels = TORCH_KERNELS,
    ) -> None:
        self._kernels = kernels
        self._loss, self._smoothing = setup.loss, smoothing_of(setup.loss)
        self._present: Tensor | None = None
        self._padding = 0
        classes = setup.clients.dataset.classes
        class_lists = [t.classes for t in tasks if t.classes is not None]
        if class_lists and classes is not None:
            self._present = torch.stack([torch.from_numpy(c) for c in class_lists]).to(device)
            if setup.absent_labels == "zero":
                self._padding = classes - self._present.shape[1]

    @property
    def is_own(self) -> bool:
        """Whether all of it is known here, and nothing is left to a function of the user's."""
        return self.is_of_labels or type(self._loss) is TokenCrossEntropy

    @property
    def smoothing(self) -> float:
        """The share of every label that is spread over all classes."""
        return self._smoothing

    @property
    def padding(self) -> int:
        """How many classes count as logits of nought, beside those that a client has."""
        return self._padding

    @property
    def is_of_labels(self) -> bool:
        """Whether it is the cross-entropy of one label per example."""
        return self._loss is functional.cross_entropy or self._present is not None

    def present(self, start: int, stop: int) -> Tensor | None:
        """The classes of some neighbouring clients; None: there are no lists of them."""
        return None if self._present is None else self._present[start:stop]

    def __call__(
        self, outputs: Tensor, targets: Tensor, present: Tensor | None
    ) -> tuple[Tensor, Tensor | list[float]]:
        """Outputs and targets of shape (batch, clients, ...) to one loss and count per client."""
        if present is not None:  # see `submodel.tasks.classification.MaskedCrossEntropy`
            if outputs.shape[2] != present.shape[1]:
                outputs = outputs.gather(2, present.expand(len(outputs), -1, -1))
            if self._padding:
                outputs = functional.pad(outputs, (0, self._padding))
            targets = torch.searchsorted(present, targets.t().contiguous()).t()
        elif type(self._loss) is TokenCrossEntropy:
            smoothing = self._loss.label_smoothing
            return _token_losses(outputs, targets, smoothing, self._kernels)
        elif (
            self._loss is not functional.cross_entropy
            or outputs.dim() != 3
            or targets.dim() != 2
            or targets.is_floating_point()
        ):
            apart = zip(outputs.unbind(1), targets.unbind(1), strict=True)
            values = [value_of(self._loss, o, t) for o, t in apart]
            return torch.stack([value.mean for value in values]), [value.count for value in values]
        flat = functional.cross_entropy(
            outputs.flatten(0, 1),
            targets.reshape(-1),
            reduction="none",
            label_smoothing=self._smoothing,
        )
        return flat.view(len(outputs), -1).mean(0), [len(outputs)] * outputs.shape[1]


def _token_losses(
    outputs: Tensor, targets: Tensor, smoothing: float, kernels: LayerKernels
) -> tuple[Tensor, Tensor]:
    """As `TokenCrossEntropy` for every client, from one pass over the logits."""
    clients = targets.shape[1]
    rows, labels = flat_logits(
        outputs.transpose(0, 1).flatten(0, 1), targets.transpose(0, 1).flatten(0, 1)
    )
    flat = kernels.cross_entropy(rows, labels.long(), NO_LABEL, smoothing)
    terms = (labels != NO_LABEL).view(clients, -1).sum(1)
    return flat.view(clients, -1).sum(1) / terms.clamp(min=1), terms.to(torch.float64)
