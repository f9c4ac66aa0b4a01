"""What is run to the end: settings, the ways that are tried in them, and their contenders.

A *contender* is what is run of a way: its configuration by seed, how long, with which rates.
"""

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
    PAPER_CAPACITIES,
    WAYS,
    Scale,
    Sections,
    Variant,
    merge_sections,
)

_LEAST_COST = 0.1  # of a round at capacity 1, however small the sub-model
EQUAL_BYTES = "-equal-bytes"
"""Ways whose names end so have the rounds that the bytes of the setting's shortest run buy."""


@dataclass(frozen=True)
class Setting:
    """What the ways of a question share."""

    title: str  # what it is, in tables
    sections: Sections  # of the configuration
    course: Course  # how long runs go on
    seeds: int  # how many each way has
    # of a core for a round of ten clients, evaluations included, measured on the machine of
    # docs/results.md with native kernels
    seconds: float
    # of the difference of two ways over seeds, the median over pairs of the 30-round records in
    # results/ (compare-rounds for L = 5, small for L = 2); None: no records
    deviation: float | None = None
    rates: tuple[float, ...] = (0.02, 0.05, 0.1)  # the grid of learning rates
    tuning_rounds: int = 150  # how long each is tried
    capacities: tuple[float, ...] = field(default=PAPER_CAPACITIES)


_ENGINE = {
    "name": "local",
    "kernels": "native" if find_compiler() else "torch",
}  # of all runs alike


def _cifar(heterogeneity: str, *capacities: float) -> Sections:
    plain: dict[str, Any] = Variant("cifar10", heterogeneity, "rolling").settings(
        Scale.CONVERGED, seed=0
    )
    sections = {name: dict(values) for name, values in plain.items() if isinstance(values, dict)}
    sections.pop("scheme")
    for key in ("schedule", "milestones", "decay"):  # the course has its own
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
    """Capacities 1 and a smaller one, in proportions that make the mean capacity 0.6."""
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
                "model": {"scaler": True},  # logits of the whole model as large as those trained
                "data": {"labels_per_client": 10},  # fewer labels each, and it never fits all
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
"""In the order in which they are run: main questions first."""


@dataclass(frozen=True)
class Contender:
    """One run of a way for each seed."""

    slug: str  # its name in folders
    config: Callable[[int], Config]  # its configuration, by seed
    course: Course  # how long its runs go on
    seeds: Sequence[int]  # how many there are
    rates: Sequence[float] = ()  # the grid of learning rates; none: as configured
    tuning_rounds: int = 0  # how long each of those is tried
    seconds: float = 1.0  # what a round takes of a core, as measured or guessed
    group: str = ""  # what it shares with those that it is compared with: the setting

    def config_at(self, seed: int, rate: float | None) -> Config:
        """Its configuration with a learning rate."""
        config = self.config(seed)
        if rate is None:
            return config
        return config.model_copy(update={"local": config.local.with_values(lr=rate)})

    @property
    def tuning_seconds(self) -> float:
        """What its grid takes of a core."""
        return len(self.rates) * self.tuning_rounds * self.seconds

    @property
    def least_seconds(self) -> float:
        """What its runs take at least: flat as soon as anybody asks."""
        return len(self.seeds) * self.course.shortest * self.seconds

    @property
    def most_seconds(self) -> float:
        """And at most: never flat."""
        return len(self.seeds) * self.course.longest * self.seconds


@dataclass(frozen=True)
class Candidate:
    """A way in a setting."""

    setting: str
    way: str

    @property
    def slug(self) -> str:
        """Its name in folders.

        >>> Candidate("cifar-low", "rolling").slug
        'cifar-low-rolling'
        """
        return f"{self.setting}-{self.way}"

    @property
    def title(self) -> str:
        """Its name in tables."""
        return WAYS[self.way][0]

    @property
    def members(self) -> dict[float, str]:
        """Capacity -> the slug of its run, where every capacity has one of its own.

        >>> Candidate("table3", "exclusive-fixed").members
        {0.25: 'table3-exclusive-fixed-at-0.25', 0.125: 'table3-exclusive-fixed-at-0.125'}
        """
        if not self.way.startswith(EXCLUSIVE):
            return {}
        return {c: f"{self.slug}-at-{c:g}" for c in SETTINGS[self.setting].capacities}

    def config(self, seed: int, capacity: float | None = None) -> Config:
        """Its configuration, or that of the run of one capacity."""
        setting = SETTINGS[self.setting]
        sections = merge_sections(setting.sections, WAYS[self.way][1])
        slug = self.slug
        if capacity is not None:
            slug = self.members[capacity]
            alone: Sections = {"model": {"share": capacity}, "clients": {"least": capacity}}
            if "scaler" in sections["model"]:
                alone["model"]["scaler"] = False
            sections = merge_sections(sections, alone)
        plain: dict[str, Any] = {"name": slug, "seed": seed, **sections}
        return parse(plain)

    def contenders(self, seeds: int | None = None) -> list[Contender]:
        """What has to be run for it."""
        setting = SETTINGS[self.setting]
        whole = Contender(
            self.slug,
            self.config,
            setting.course,
            range(seeds or setting.seeds),
            () if "lr" in WAYS[self.way][1].get("local", {}) else setting.rates,
            setting.tuning_rounds,
            setting.seconds * _cost(self.way, setting),
            self.setting,
        )
        if self.way.endswith(EQUAL_BYTES):
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
    """What a round at a capacity costs, in rounds of the setting's own mixture."""
    mixture = fmean(max(_LEAST_COST, c * c) for c in setting.capacities)
    return max(_LEAST_COST, capacity * capacity) / mixture


def _cost(way: str, setting: Setting) -> float:
    """What a round of a way costs, in rounds of the setting's own mixture."""
    if way.startswith(EXCLUSIVE):
        return sum(_share_cost(c, setting) for c in setting.capacities)
    if way.startswith("full"):
        return _share_cost(1.0, setting)
    return 1.0


def equal_course(candidate: Candidate, setting: Setting) -> Course:
    """The rounds of a way that send no more bytes than the setting's mixture in its shortest run.

    Bytes go by the square of a capacity, as parameters do; what a run really sent is in its record.
    """
    squares = [c * c for c in setting.capacities]
    times = sum(squares) / fmean(squares) if candidate.members else 1 / fmean(squares)
    rounds = int(setting.course.shortest / times)
    final = max(1, rounds * setting.course.final // setting.course.shortest)
    return Course(rounds - final, rounds - final, step=1, final=final)


def candidates_of(slugs: Sequence[tuple[str, str]]) -> list[Candidate]:
    """Candidates by setting and way, each once.

    >>> [t.slug for t in candidates_of([("fashion", "rolling"), ("fashion", "rolling")])]
    ['fashion-rolling']
    """
    return [Candidate(*pair) for pair in dict.fromkeys(slugs)]
