"""Construction of sub-models from cuts."""

from submodel.model.build.layers import LayerCut, resizes
from submodel.model.build.module import (
    build_module,
    can_release,
    fill_local,
    load,
    load_local,
    local_of,
    release,
    sharing,
    skeleton,
    tensors_of,
    to_device,
    without_values,
)

__all__ = [
    "LayerCut",
    "build_module",
    "can_release",
    "fill_local",
    "load",
    "load_local",
    "local_of",
    "release",
    "resizes",
    "sharing",
    "skeleton",
    "tensors_of",
    "to_device",
    "without_values",
]
