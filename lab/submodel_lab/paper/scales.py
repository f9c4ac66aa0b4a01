"""Settings of `reproduce` for `submodel compare --scale`.

At the scale `converged`, learning rates are tuned on held-out data, and runs continue until they
are flat and end with a decay of the rate.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from submodel.comparison import (
    Arm,
    Base,
    ComparisonPlan,
    ComparisonResult,
    ComparisonScale,
    Course,
    Runner,
    base_of,
)
from submodel.config import Config
from submodel.core import ConfigError
from submodel_lab.converged.arms import RunSpec
from submodel_lab.converged.converge import converge
from submodel_lab.paper.experiments import DATASETS, PaperArm, Scale

_GRID = (0.4, 1.0, 2.0)  # times local.lr
_TUNING_SHARE = 0.15  # of the rounds before the first test of flatness


def course_of(config: Config) -> Course:
    """Make the course whose shortest run, with its decay, has the configured rounds.

    >>> from submodel.config import parse
    >>> step = {"schedule": "step", "milestones": [1000]}
    >>> course = course_of(parse({"local": step, "train": {"rounds": 1100}}))
    >>> course.least, course.most, course.step, course.final
    (1000, 1500, 250, 100)
    """
    milestones = getattr(config.local, "milestones", None) or []
    if len(milestones) != 1 or not 0 < milestones[0] <= config.train.rounds:
        raise ConfigError(
            "local.milestones: --scale converged needs exactly one, the round at which the rate "
            f"of a flat run decays; given: {milestones} of {config.train.rounds} rounds"
        )
    least = milestones[0]
    return Course(
        least,
        least + least // 2,
        step=max(1, least // 4),
        final=config.train.rounds - least,
        decay=config.local.decay,
    )


def describe_course(course: Course, every: int) -> str:
    """Describe the length of runs."""
    return (
        f"until flat: {course.rule.describe(every)}, on the held-out part; {course.least} to "
        f"{course.most} rounds, then {course.final} at {course.decay:g} of the rate"
    )


def specs_of_plan(plan: ComparisonPlan) -> list[RunSpec]:
    """Make the run specs; arms that set ``local.lr`` keep it, others choose from a grid."""
    return [_run_spec(part, plan.configs[part.slug]) for runs in plan.runs for part in runs.parts]


def _run_spec(part: Arm, configs: Sequence[Config]) -> RunSpec:
    config = configs[0]
    course = course_of(config)
    has_rate = any(key == "local.lr" for key, _ in part.settings)
    return RunSpec(
        part.slug,
        lambda seed: config.model_copy(update={"seed": seed}),
        course,
        [c.seed for c in configs],
        () if has_rate else [factor * config.local.lr for factor in _GRID],
        max(1, round(_TUNING_SHARE * course.least)),
    )


def run_to_the_end(
    plan: ComparisonPlan, out: Path, jobs: int | None, console: Console, command: str
) -> ComparisonResult:
    """Choose rates, finish all runs, and keep the records."""
    runner = Runner(out, jobs or os.cpu_count() or 1, console)
    specs = specs_of_plan(plan)
    records = converge(runner, specs, out / "records")
    every = next(iter(plan.configs.values()))[0].train.evaluate_every
    budget = describe_course(specs[0].course, every)
    return plan.keep(records, out / "records", budget, command)


def scale_base(scale: Scale) -> Base:
    """Return the setting of `reproduce` at a scale: low heterogeneity, capacities 1 to 1/16.

    >>> scale_base(Scale.PAPER)(["scheme.name=static"]).clients.capacities
    [1.0, 0.5, 0.25, 0.125, 0.0625]
    """
    settings = PaperArm(DATASETS[scale][0], "low", "rolling").settings(scale, seed=0)
    return base_of({**settings, "name": scale.value})


SMOKE = ComparisonScale(scale_base(Scale.SMOKE))
SMALL = ComparisonScale(scale_base(Scale.SMALL))
CONVERGED = ComparisonScale(scale_base(Scale.CONVERGED), run_to_the_end, has_budget=False)
PAPER = ComparisonScale(scale_base(Scale.PAPER))
