"""Settings of converged runs, their arms, and the runs of each arm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from statistics import fmean
from typing import Any

from submodel.comparison import EXCLUSIVE, Course, FlatRule
from submodel.config import Config, parse
from submodel.engines import find_compiler
from submodel_lab.paper.experiments import (
    CLIENTS,
    LOCAL,
    METHODS,
    PAPER_CAPACITIES,
    PaperArm,
    Scale,
    Sections,
    merge_sections,
)

_LEAST_COST = 0.1  # of a round at capacity 1, however small the sub-model
EQUAL_BYTES = "-equal-bytes"
"""Ending of the names of methods whose rounds use the bytes of the setting's shortest run."""


@dataclass(frozen=True)
class Setting:
    """Common setting of the arms of a question."""

    title: str  # name in tables
    sections: Sections  # of the configuration
    course: Course  # length of the runs
    seeds: int  # number of seeds of each arm
    # core-seconds of a round of ten clients with evaluations, measured on the machine of
    # docs/results.md with native kernels
    seconds: float
    # standard deviation over seeds of the difference of two arms: median over pairs in the 30-round
    # records in results/ (compare-rounds for L = 5, small for L = 2); None: no records
    deviation: float | None = None
    rates: tuple[float, ...] = (0.02, 0.05, 0.1)  # grid of learning rates
    tuning_rounds: int = 150  # rounds of each trial of a rate
    capacities: tuple[float, ...] = field(default=PAPER_CAPACITIES)


_ENGINE = {
    "name": "local",
    "kernels": "native" if find_compiler() else "torch",
}  # of all runs alike


def _cifar(heterogeneity: str, *capacities: float) -> Sections:
    plain: dict[str, Any] = PaperArm("cifar10", heterogeneity, "rolling").settings(
        Scale.CONVERGED, seed=0
    )
    sections = {name: dict(values) for name, values in plain.items() if isinstance(values, dict)}
    sections.pop("scheme")
    for key in ("schedule", "milestones", "decay"):  # set by the course
        sections["local"].pop(key)
    own_sections: Sections = {"clients": {"capacities": list(capacities)}, "engine": _ENGINE}
    return merge_sections(sections, own_sections)


def _fashion(examples: int, **clients: Any) -> Sections:
    return {
        "model": {"name": "cnn", "width": 16},
        "data": {
            "name": "fashion-mnist",
            "examples": examples,
            "held_out": 0.1,
            "partition": "labels",
            "labels_per_client": 5,
        },
        "clients": {**CLIENTS, **clients},
        "local": LOCAL,
        "train": {
            "evaluate_every": 20,
            "checkpoint_every": 100,
            "evaluate_capacities": False,
            "statistics_examples": 1_000,
        },
        "engine": _ENGINE,
    }


_MEAN_CAPACITY = 0.6
_FASHION_COURSE = Course(400, 600, step=100, final=40, rule=FlatRule(window=5))
_CIFAR_COURSE = Course(1_000, 1_500, step=250, final=100)


def _smallest(smallest: float) -> Setting:
    """Make a setting of capacities 1 and a smaller one, with mean capacity 0.6."""
    share = (_MEAN_CAPACITY - smallest) / (1 - smallest)
    return Setting(
        f"Fashion-MNIST, L = 5, capacities 1 and {Fraction(smallest)}, mean {_MEAN_CAPACITY:g}",
        _fashion(10_000, capacities=[1.0, smallest], proportions=[share, 1 - share]),
        _FASHION_COURSE,
        seeds=10,
        seconds=FASHION_SECONDS * 1.1,
        capacities=(1.0, smallest),
    )


CIFAR_SECONDS = 0.7
FASHION_SECONDS = 0.08
WIDE_SECONDS = 0.95
SETTINGS: dict[str, Setting] = {
    "cifar-low": Setting(
        "CIFAR-10, L = 5",
        _cifar("low", *PAPER_CAPACITIES),
        _CIFAR_COURSE,
        seeds=3,
        seconds=CIFAR_SECONDS,
        deviation=0.0229,
    ),
    "cifar-high": Setting(
        "CIFAR-10, L = 2",
        _cifar("high", *PAPER_CAPACITIES),
        _CIFAR_COURSE,
        seeds=3,
        seconds=CIFAR_SECONDS,
        deviation=0.0241,
    ),
    "fashion": Setting(
        "Fashion-MNIST, L = 5", _fashion(10_000), _FASHION_COURSE, seeds=10, seconds=FASHION_SECONDS
    ),
    "fashion-1-2": _smallest(1 / 2),
    "fashion-1-4": _smallest(1 / 4),
    "fashion-1-8": _smallest(1 / 8),
    "fashion-1-16": _smallest(1 / 16),
    "overfit": Setting(
        "Fashion-MNIST, 18 images a client",
        merge_sections(
            _fashion(2_000),
            {
                "model": {"scaler": True},  # logits of the whole model have the scale of training
                "data": {"labels_per_client": 10},  # with fewer labels the model never fits all
                "local": {"weight_decay": 0.0, "epochs": 5},
                "train": {"evaluate_train": True},
            },
        ),
        Course(900, 900, step=1, final=90),
        seeds=10,
        seconds=0.06,
    ),
    "table3": Setting(
        "CIFAR-10, L = 2, capacities 1/4 and 1/8",
        _cifar("high", 1 / 4, 1 / 8),
        Course(2_000, 2_000, step=1, final=200),
        seeds=3,
        seconds=CIFAR_SECONDS / 4,
        deviation=0.0241,
        capacities=(1 / 4, 1 / 8),
    ),
    "cifar-wide": Setting(
        "CIFAR-10, L = 5, width 16",
        merge_sections(_cifar("low", *PAPER_CAPACITIES), {"model": {"width": 16}}),
        _CIFAR_COURSE,
        seeds=3,
        seconds=WIDE_SECONDS,
        deviation=0.0229,
    ),
    "factors": Setting(
        "CIFAR-10, L = 5, width 4, 100 images a client",
        merge_sections(
            _cifar("low", *PAPER_CAPACITIES), {"model": {"width": 4}, "data": {"examples": 10_500}}
        ),
        Course(400, 400, step=1, final=40),
        seeds=3,
        seconds=0.25,
        tuning_rounds=100,
    ),
}
"""Settings in the order of running: main questions first."""


@dataclass(frozen=True)
class RunSpec:
    """Runs of one configuration: their seeds, course and grid of learning rates."""

    slug: str  # name in folders
    config: Callable[[int], Config]  # configuration by seed
    course: Course  # length of the runs
    seeds: Sequence[int]
    rates: Sequence[float] = ()  # grid of learning rates; empty: as configured
    tuning_rounds: int = 0  # rounds of each trial of a rate
    seconds: float = 1.0  # core-seconds of a round, measured or guessed
    group: str = ""  # the setting; runs are compared within a group

    def config_at(self, seed: int, rate: float | None) -> Config:
        """Return the configuration of a seed with a learning rate; None: as configured."""
        config = self.config(seed)
        if rate is None:
            return config
        return config.model_copy(update={"local": config.local.with_values(lr=rate)})

    @property
    def tuning_seconds(self) -> float:
        """Core-seconds of the trials of the grid."""
        return len(self.rates) * self.tuning_rounds * self.seconds

    @property
    def least_seconds(self) -> float:
        """Core-seconds of the runs if all are flat at the first test."""
        return len(self.seeds) * self.course.shortest * self.seconds

    @property
    def most_seconds(self) -> float:
        """Core-seconds of the runs if none is ever flat."""
        return len(self.seeds) * self.course.longest * self.seconds


@dataclass(frozen=True)
class ConvergedArm:
    """A training method in a setting."""

    setting: str
    method: str

    @property
    def slug(self) -> str:
        """Name of the arm in folders.

        >>> ConvergedArm("cifar-low", "rolling").slug
        'cifar-low-rolling'
        """
        return f"{self.setting}-{self.method}"

    @property
    def title(self) -> str:
        """Name of the arm in tables."""
        return METHODS[self.method][0]

    @property
    def members(self) -> dict[float, str]:
        """Slug of the runs of each capacity, for methods that train one model per capacity.

        >>> ConvergedArm("table3", "exclusive-fixed").members
        {0.25: 'table3-exclusive-fixed-at-0.25', 0.125: 'table3-exclusive-fixed-at-0.125'}
        """
        if not self.method.startswith(EXCLUSIVE):
            return {}
        return {c: f"{self.slug}-at-{c:g}" for c in SETTINGS[self.setting].capacities}

    def config(self, seed: int, capacity: float | None = None) -> Config:
        """Return the configuration of the arm, or of its runs at one capacity."""
        setting = SETTINGS[self.setting]
        sections = merge_sections(setting.sections, METHODS[self.method][1])
        slug = self.slug
        if capacity is not None:
            slug = self.members[capacity]
            alone: Sections = {"model": {"share": capacity}, "clients": {"least": capacity}}
            if "scaler" in sections["model"]:
                alone["model"]["scaler"] = False
            sections = merge_sections(sections, alone)
        plain: dict[str, Any] = {"name": slug, "seed": seed, **sections}
        return parse(plain)

    def specs(self, seeds: int | None = None) -> list[RunSpec]:
        """List the runs of the arm."""
        setting = SETTINGS[self.setting]
        whole = RunSpec(
            self.slug,
            self.config,
            setting.course,
            range(seeds or setting.seeds),
            () if "lr" in METHODS[self.method][1].get("local", {}) else setting.rates,
            setting.tuning_rounds,
            setting.seconds * _cost(self.method, setting),
            self.setting,
        )
        if self.method.endswith(EQUAL_BYTES):
            course = equal_course(self, setting)
            tuning_rounds = min(setting.tuning_rounds, course.shortest)
            whole = replace(whole, course=course, tuning_rounds=tuning_rounds)
        if not self.members:
            return [whole]
        total = sum(_share_cost(c, setting) for c in setting.capacities)
        return [
            replace(
                whole,
                slug=slug,
                config=partial(self.config, capacity=capacity),
                seconds=whole.seconds * _share_cost(capacity, setting) / total,
            )
            for capacity, slug in self.members.items()
        ]


def _share_cost(capacity: float, setting: Setting) -> float:
    """Return the cost of a round at a capacity, in rounds of the setting's own mixture."""
    mixture = fmean(max(_LEAST_COST, c * c) for c in setting.capacities)
    return max(_LEAST_COST, capacity * capacity) / mixture


def _cost(method: str, setting: Setting) -> float:
    """Return the cost of a round of a method, in rounds of the setting's own mixture."""
    if method.startswith(EXCLUSIVE):
        return sum(_share_cost(c, setting) for c in setting.capacities)
    if method.startswith("full"):
        return _share_cost(1.0, setting)
    return 1.0


def equal_course(arm: ConvergedArm, setting: Setting) -> Course:
    """Make the longest course that sends no more bytes than the shortest run of the setting.

    Bytes are estimated by the square of the capacity, as parameters are; records have true bytes.
    """
    squares = [c * c for c in setting.capacities]
    times = sum(squares) / fmean(squares) if arm.members else 1 / fmean(squares)
    rounds = int(setting.course.shortest / times)
    final = max(1, rounds * setting.course.final // setting.course.shortest)
    return Course(rounds - final, rounds - final, step=1, final=final)


def arms_of(slugs: Sequence[tuple[str, str]]) -> list[ConvergedArm]:
    """Return the arms of pairs (setting, method), each once.

    >>> [t.slug for t in arms_of([("fashion", "rolling"), ("fashion", "rolling")])]
    ['fashion-rolling']
    """
    return [ConvergedArm(*pair) for pair in dict.fromkeys(slugs)]
