"""Building the small module of a cut."""

from submodel.model.build.layers import LayerCut, resizes
from submodel.model.build.module import (
    build,
    fill_local,
    load,
    load_local,
    local_of,
    skeleton,
    tensors_of,
    to_device,
)

__all__ = [
    "LayerCut",
    "build",
    "fill_local",
    "load",
    "load_local",
    "local_of",
    "resizes",
    "skeleton",
    "tensors_of",
    "to_device",
]
