"""Exact expectations for quadratics: the moments of every iterate, by recursion over masks."""

from submodel_lab.theory.exact.trajectory import ExactTrajectory, exact_moments

__all__ = ["ExactTrajectory", "exact_moments"]
