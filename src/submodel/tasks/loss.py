"""What a loss is."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> the mean loss over the batch.

Where not all examples count alike, ``loss.count(targets)``, if it has that, tells how many terms it
is the mean of (`submodel.tasks.counting`)."""
