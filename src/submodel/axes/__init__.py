"""The axes of a model: what must be cut together, and how it lies in the tensors."""

from submodel.axes.declare import CLASSES, Axes, Dimension, declare

__all__ = ["CLASSES", "Axes", "Dimension", "declare"]
