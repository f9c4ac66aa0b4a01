"""The axes of a model: what must be cut together, and how it lies in the tensors."""

from submodel.axes.declare import CLASSES, Axes, Dimension, declare
from submodel.axes.tracer import trace

__all__ = ["CLASSES", "Axes", "Dimension", "declare", "trace"]
