"""From a configuration to a setup that was tried."""

from typing import TYPE_CHECKING

from submodel.lazy import lazily

if TYPE_CHECKING:
    from submodel.prepare.setup import prepare

__all__ = [
    "prepare",
]  # fmt: skip
__getattr__ = lazily(
    __name__,
    {
        "submodel.prepare.setup": "prepare",
    },
)
