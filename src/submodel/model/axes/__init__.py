"""The axes of a model: dimensions that must be cut together, and their layout in the tensors."""

from submodel.model.axes.declare import CLASSES, Axes, Dimension, declare
from submodel.model.axes.tracer import trace
from submodel.model.axes.verify import AxesError, verify

__all__ = ["CLASSES", "Axes", "AxesError", "Dimension", "declare", "trace", "verify"]
