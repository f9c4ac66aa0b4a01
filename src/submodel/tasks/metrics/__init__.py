"""Metrics: what is told of outputs and targets beside the loss, a file for each."""

from __future__ import annotations

from submodel.tasks.metrics.base import BatchMetric, MetricContext, as_metric

__all__ = ["BatchMetric", "MetricContext", "as_metric"]
