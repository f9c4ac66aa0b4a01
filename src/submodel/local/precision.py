"""In what precision a client computes."""

from typing import Literal

Precision = Literal["float32", "bfloat16"]
"""Of products and convolutions; weights, sums and everything exchanged stay as they are."""
