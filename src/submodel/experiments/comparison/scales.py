"""Scales: settings that `submodel compare --scale` names, offered by other packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from submodel.errors import ConfigError
from submodel.experiments.comparison.findings import Findings
from submodel.experiments.comparison.plan import Base, ComparisonPlan, run_plan
from submodel.extensions import FROM_LAB, SCALES, extensions, load_extension

RunComparison = Callable[[ComparisonPlan, Path, int | None, Console, str], Findings]
"""Runs a plan: its folder, the number of jobs, the console for progress and the command."""


@dataclass(frozen=True)
class ComparisonScale:
    """A setting in which ways are compared.

    Args:
        base: what all ways share.
        run: trains what is not finished yet and keeps the records.
        has_budget: whether all ways get the same budget; otherwise `run` decides when each ends.
    """

    base: Base
    run: RunComparison = run_plan
    has_budget: bool = True


def find_scale(name: str) -> ComparisonScale:
    """Return the scale of a name; raises `ConfigError` where no installed package offers it."""
    offered = extensions(SCALES)
    if name not in offered:
        names = f"is not one of {', '.join(offered)}" if offered else FROM_LAB
        raise ConfigError([f"--scale: {name!r} {names}"])
    scale: ComparisonScale = load_extension(offered[name])
    return scale
