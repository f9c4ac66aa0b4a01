"""The axes of a model: what must be cut together, and how it lies in the tensors."""

from submodel.axes.declare import CLASSES, Axes, Dimension, declare
from submodel.axes.tracer import trace
from submodel.axes.verify import AxesError, verify

__all__ = ["CLASSES", "Axes", "AxesError", "Dimension", "declare", "trace", "verify"]
