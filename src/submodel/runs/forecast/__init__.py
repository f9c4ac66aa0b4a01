"""What a run will take: measured on a little of it, extrapolated by shapes, before it begins."""

from submodel.runs.forecast.forecast import Forecast, Phase, forecast
from submodel.runs.forecast.quantities import ByCapacity, Quantities

__all__ = ["ByCapacity", "Forecast", "Phase", "Quantities", "forecast"]
