"""What a client does with its sub-model: steps, optimisers."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.local.optimisers import Gradients, Slots

__all__ = [
    "Gradients", "Slots",
]  # fmt: skip
__getattr__ = lazily(
    __name__,
    {
        "submodel.local.optimisers": "Gradients Slots",
    },
)
