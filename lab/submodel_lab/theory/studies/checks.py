"""Settings that no study can use, refused before anything is measured."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from submodel_lab.theory.problems import TheoryError

_SHARES = ("capacities", "sweep_capacities", "controls", "p")
_MAY_BE_ZERO = ("seed", "noise", "heterogeneity", "heterogeneities", "l2")


def check_settings(settings: Any) -> None:
    """Refuse counts below 1, shares outside (0, 1], numbers that are none, and empty lists.

    Args:
        settings: Of any study, a dataclass.

    >>> from submodel_lab.theory.studies import STUDIES
    >>> check_settings(STUDIES["residual"].default_settings())
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value == ():
            raise TheoryError(f"{field.name}: at least one is needed")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float):
                _check_number(field.name, number)
    if getattr(settings, "trials", 2) < 2:
        raise TheoryError(f"trials = {settings.trials}: at least 2 are needed for an interval")
    mu, smoothness = (getattr(settings, name, math.nan) for name in ("mu", "smoothness"))
    if mu > smoothness:
        raise TheoryError(f"mu = {mu:g} is above smoothness = {smoothness:g}: mu <= L is needed")


def _check_number(name: str, number: float) -> None:
    if not math.isfinite(number):
        raise TheoryError(f"{name} = {number}: a finite number is needed")
    if name in _SHARES and not 0 < number <= 1:
        raise TheoryError(f"{name}: p = {number:g} is not in (0, 1]: a client must hold something")
    if name in ("dimension", "dimensions") and number < 2:
        raise TheoryError(f"{name} = {number}: masks need at least 2 coordinates")
    if name == "mu" and number <= 0:
        raise TheoryError(f"mu = {number:g}: a strongly convex problem has mu above 0")
    if number < 0 or (number == 0 and name not in _MAY_BE_ZERO):
        least = "0 or more" if name in _MAY_BE_ZERO else "1 or more"
        kind = least if isinstance(number, int) else least.replace("1 or more", "more than 0")
        raise TheoryError(f"{name} = {number:g}: {kind} is needed")
