"""Language: the next token at every place of a sequence."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from submodel.tasks.base import TaskContext, TaskKind
from submodel.tasks.classification import Smoothing
from submodel.tasks.logits import NO_LABEL, flat_logits


@dataclass(frozen=True)
class TokenCrossEntropy:
    """The mean cross-entropy over all places whose target counts; -100 does not.

    >>> import torch
    >>> loss = TokenCrossEntropy()
    >>> targets = torch.tensor([[0, -100], [1, 1]])
    >>> round(float(loss(torch.zeros(2, 2, 4), targets)), 3), loss.count(targets)
    (1.386, 3)
    """

    label_smoothing: float = 0.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean over what counts."""
        rows, labels = flat_logits(outputs, targets)
        return functional.cross_entropy(
            rows, labels.long(), ignore_index=NO_LABEL, label_smoothing=self.label_smoothing
        )

    def count(self, targets: Tensor) -> int:
        """The places that count."""
        return int((targets != NO_LABEL).sum())


@dataclass(frozen=True)
class Language:
    """Sequences of tokens; targets are the token that follows each."""

    Options = Smoothing

    @classmethod
    def configured(cls, options: Smoothing, context: TaskContext) -> TaskKind:
        """Perplexity, and bits per byte where the bytes of a token are known."""
        metrics = ["perplexity"]
        if context.facts.bytes_per_token is not None:
            metrics.append("bits_per_byte")
        return context.kind("language", TokenCrossEntropy(context.smoothing(options)), metrics)
