"""Whether optimisers keep their state between rounds."""

from typing import Literal

OptimiserState = Literal["fresh", "kept"]
"""Whether a client's optimiser begins every round afresh, or where it ended its last one."""
