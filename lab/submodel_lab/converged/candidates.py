"""The ways that are tried in a setting, and the contenders that each of them is run by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from submodel.config import Config, parse
from submodel.experiments import EXCLUSIVE, Course
from submodel_lab.converged.contenders import Contender
from submodel_lab.converged.settings import SETTINGS, Setting
from submodel_lab.paper.variants import Sections, merge_sections

_FILL_IN: Sections = {"merge": {"rule": "fill_in"}}
_FIXED_MODE: Sections = {"clients": {"capacity_mode": "fixed"}}
_ROLLING: Sections = {"scheme": {"name": "rolling"}}
_STATIC: Sections = {"scheme": {"name": "static"}}
_DROPOUT: Sections = {"scheme": {"name": "random", "sampling": "fixed"}}
_FULL: Sections = {"scheme": {"name": "full"}}
_LEAST_COST = 0.1  # of a round at capacity 1, however small the sub-model
EQUAL_BYTES = "-equal-bytes"
"""Ways whose names end so have the rounds that the bytes of the setting's shortest run buy."""


def _at(capacity: float) -> Sections:
    return {"clients": {"capacities": [capacity]}}


def _rate(rate: float) -> Sections:
    return {"local": {"lr": rate}}


TRIED_WAYS: dict[str, tuple[str, Sections]] = {
    "rolling": ("rolling", _ROLLING),
    "static": ("static", _STATIC),
    "random": ("random (Bernoulli, Algorithm 1)", {"scheme": {"name": "random"}}),
    "dropout": ("dropout (random, fixed size)", _DROPOUT),
    "rolling-sequential": (
        "rolling, sequential windows",
        {"scheme": {"name": "rolling", "order": "sequential"}},
    ),
    "rolling-fill_in": ("rolling, fill_in", merge_sections(_ROLLING, _FILL_IN)),
    "static-fill_in": ("static, fill_in", merge_sections(_STATIC, _FILL_IN)),
    "dropout-fill_in": ("dropout, fill_in", merge_sections(_DROPOUT, _FILL_IN)),
    "rolling-fixed": ("rolling, fixed capacities", merge_sections(_ROLLING, _FIXED_MODE)),
    "static-fixed": ("static, fixed capacities", merge_sections(_STATIC, _FIXED_MODE)),
    "dropout-fixed": ("dropout, fixed capacities", merge_sections(_DROPOUT, _FIXED_MODE)),
    "dropout-independent": (
        "dropout, layers drawn independently",
        {"scheme": {"name": "random", "sampling": "fixed", "alignment": "independent"}},
    ),
    "rolling-rate-0.05": ("rolling, rate 0.05", merge_sections(_ROLLING, _rate(0.05))),
    "rolling-rate-0.1": ("rolling, rate 0.1", merge_sections(_ROLLING, _rate(0.1))),
    "static-rate-0.1": ("static, rate 0.1", merge_sections(_STATIC, _rate(0.1))),
    "full": ("full (capacity 1)", merge_sections(_FULL, _at(1.0))),
    "dropout-at-1-2": ("dropout, capacity 1/2", merge_sections(_DROPOUT, _at(1 / 2))),
    "dropout-at-1-4": ("dropout, capacity 1/4", merge_sections(_DROPOUT, _at(1 / 4))),
    "exclusive-fixed": (
        "exclusive, fixed capacities, equal rounds",
        merge_sections(_FULL, _FIXED_MODE),
    ),
    "exclusive-fixed-equal-bytes": (
        "exclusive, fixed capacities, equal bytes",
        merge_sections(_FULL, _FIXED_MODE),
    ),
    "exclusive-equal-bytes": ("exclusive, equal bytes", _FULL),
    "full-equal-bytes": ("full, equal bytes", merge_sections(_FULL, _at(1.0))),
}
"""Title and sections by name."""


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
        return TRIED_WAYS[self.way][0]

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
        """Its configuration, or that of the run of one capacity.

        Args:
            seed: all randomness follows from it.
            capacity: whose run, where every capacity has its own.
        """
        setting = SETTINGS[self.setting]
        sections = merge_sections(setting.sections, TRIED_WAYS[self.way][1])
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
        """What has to be run for it.

        Args:
            seeds: how many runs of each; None: as many as the setting has.
        """
        setting = SETTINGS[self.setting]
        whole = Contender(
            self.slug,
            self.config,
            setting.course,
            range(seeds or setting.seeds),
            () if "lr" in TRIED_WAYS[self.way][1].get("local", {}) else setting.rates,
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

    Args:
        candidate: whose.
        setting: its setting.
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
