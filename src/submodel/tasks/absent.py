"""Labels that a client lacks: what becomes of their logits."""

from typing import Literal

AbsentLabels = Literal["keep", "zero", "leave_out"]
"""They stay, are set to zero, or are taken out of the softmax."""
