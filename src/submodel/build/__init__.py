"""Building the small module of a cut."""

from submodel.build.layers import LayerCut, resizes
from submodel.build.module import build, load, load_local, skeleton, tensors_of

__all__ = ["LayerCut", "build", "load", "load_local", "resizes", "skeleton", "tensors_of"]
