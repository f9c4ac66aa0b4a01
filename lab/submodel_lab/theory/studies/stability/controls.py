"""Two controls of "masking stabilises": full models with a smaller step, and at equal loss.

A masked model moves less in the same rounds, so it is less trained. A full model that moves less is
more stable, too: only at equal training loss the masks themselves are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from submodel_lab.theory.measures import Measure
from submodel_lab.theory.studies.stability.cases import StabilitySettings
from submodel_lab.theory.studies.stability.points import (
    StabilityPoint,
    measure_stability,
    train_once,
)
from submodel_lab.theory.verdicts import Statement, Verdict, judge_positive

_HALVINGS = 9  # of the interval in which the step size is looked for
_LEAST_FACTOR = 1e-3


def match_factor(loss_of: Callable[[float], float], target: float) -> float | None:
    """The factor of the step size, up to 1, with which a loss is a target; None if none is.

    Args:
        loss_of: The training loss with a factor; it falls with it.
        target: The loss to be met.

    >>> round(match_factor(lambda factor: 1 - factor, 0.5), 2)
    0.5
    """
    low, high = _LEAST_FACTOR, 1.0
    if not loss_of(high) <= target <= loss_of(low):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        if loss_of(middle) > target:
            low = middle
        else:
            high = middle
    return math.sqrt(low * high)


def control_points(
    s: StabilitySettings, point: StabilityPoint
) -> dict[str, tuple[StabilityPoint, Callable[[StabilityPoint], Measure]]]:
    """Full models beside a masked one, by kind of control, and what is compared with each.

    Args:
        s: The settings.
        point: The masked model.
    """
    whole = replace(point.case, p=1.0, rolls=False)
    controls: dict[str, tuple[StabilityPoint, Callable[[StabilityPoint], Measure]]] = {}
    smaller = replace(whole, eta_factor=point.share)
    controls["step p eta, w^"] = (measure_stability(s, smaller), _output)
    for name, place, target in (
        ("equal training loss, w_R", 0, point.iterate_loss.mean),
        ("equal training loss, w^", 1, point.output_loss.mean),
    ):

        def loss_of(factor: float, place: int = place) -> float:
            return train_once(s, replace(whole, eta_factor=factor))[place]

        factor = match_factor(loss_of, target)
        if factor is not None:
            full = measure_stability(s, replace(whole, eta_factor=factor))
            controls[name] = (full, _output if place else _iterate)
    return controls


def control_statements(
    s: StabilitySettings,
    point: StabilityPoint,
    controls: dict[str, tuple[StabilityPoint, Callable[[StabilityPoint], Measure]]],
) -> list[Statement]:
    """Whether the masked model is still the more stable one.

    Args:
        s: The settings.
        point: The masked model.
        controls: What `control_points` gave for it.
    """
    words, claims = point.case.words(s), []
    for name, (full, read) in controls.items():
        less = read(full).minus(read(point))
        claims += [
            Statement(point.case.theorem, "p, control", f"{words}: {name}",
                      "how much less the masked model moves than the full one", less, ">", 0.0,
                      judge_positive(less), point.step.note),
            Statement(point.case.theorem, "p, control", f"{words}: {name}",
                      "the full model's distance", read(full), "-", read(point).mean,
                      Verdict.NUMBER, point.step.note),
        ]  # fmt: skip
    return claims


def _output(point: StabilityPoint) -> Measure:
    return point.output


def _iterate(point: StabilityPoint) -> Measure:
    return point.iterate
