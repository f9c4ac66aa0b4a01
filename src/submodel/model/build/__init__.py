"""Building the small module of a cut."""

from submodel.model.build.layers import LayerCut, resizes
from submodel.model.build.module import build_module, skeleton, to_device
from submodel.model.build.tensors import fill_local, load, load_local, local_of, tensors_of

__all__ = [
    "LayerCut",
    "build_module",
    "fill_local",
    "load",
    "load_local",
    "local_of",
    "resizes",
    "skeleton",
    "tensors_of",
    "to_device",
]
