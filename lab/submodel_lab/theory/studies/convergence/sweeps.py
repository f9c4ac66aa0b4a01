"""The sweeps of the study: along what, over which cases, and what their theorem states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from submodel_lab.theory.studies.comparison import slope_statement, worst_condition
from submodel_lab.theory.studies.convergence.cases import (
    ConvergenceCase,
    ConvergenceSettings,
    convergence_base,
)
from submodel_lab.theory.studies.convergence.points import ConvergencePoint
from submodel_lab.theory.verdicts import Statement

_ERROR = "E||w_R - w*||^2"


@dataclass(frozen=True)
class ConvergenceSweep:
    """Cases along one parameter."""

    parameter: str
    x: Sequence[float]
    cases: Sequence[ConvergenceCase]
    label: str

    def statement(
        self, s: ConvergenceSettings, points: dict[ConvergenceCase, ConvergencePoint]
    ) -> Statement:
        """Whether the error moves along the parameter as the theorem's bound does."""
        run = [points[case] for case in self.cases]
        first = self.cases[0]
        speaks = bool(first.source) and s.eta is None
        return slope_statement(
            first.source, self.parameter, self.label, _ERROR, self.x, [p.error for p in run],
            [p.ceiling for p in run], worst_condition([p.step for p in run]), speaks,
        )  # fmt: skip


def round_sweeps(s: ConvergenceSettings) -> list[ConvergenceSweep]:
    """Along R: by p, without noise, rolling, and other step sizes at the smallest p."""
    base = convergence_base(s)
    least = base.p
    cases = [
        *((f"random, p={p:g}", replace(base, p=p)) for p in s.capacities),
        (f"random, p_i of 1 and {least:g}", replace(base, unequal=True)),
        ("random, p=1, no noise", replace(base, p=1.0, noise=0.0)),
        (f"random, p={least:g}, no noise", replace(base, noise=0.0)),
        (_rolling_name(s, base), replace(base, rolls=True)),
        (f"{_rolling_name(s, base)}, no noise", replace(base, rolls=True, noise=0.0)),
        (f"{_rolling_name(s, base)}, Thm 1's step",
         replace(base, rolls=True, step_kind="theorem 1")),
        (f"random, p={least:g}, tuned step", replace(base, step_kind="tuned")),
        (f"random, p={least:g}, decaying step", replace(base, step_kind="decaying")),
        (f"random, p={least:g}, averaged iterates", replace(base, step_kind="averaged")),
    ]  # fmt: skip
    return [
        ConvergenceSweep("R", s.rounds, [replace(case, rounds=r) for r in s.rounds], label)
        for label, case in cases
    ]


def parameter_sweeps(s: ConvergenceSettings) -> list[ConvergenceSweep]:
    """Along K, N, p, kappa, noise and heterogeneity, with random and with rolling masks."""
    sweeps = []
    for rolls in (False, True):
        base = replace(convergence_base(s), rolls=rolls)
        name = _rolling_name(s, base) if rolls else f"random, p={base.p:g}"
        kind = "rolling" if rolls else "random"
        quiet = replace(base, noise=0.0)
        by_p = [replace(base, p=p) for p in sorted(s.sweep_capacities, reverse=True)]
        shares = [case.share(s) for case in by_p]
        sweeps += [
            ConvergenceSweep("K", s.sweep_steps,
                             [replace(base, steps=k) for k in s.sweep_steps], name),
            ConvergenceSweep("N", s.sweep_clients,
                             [replace(base, clients=n, kinds=min(s.sweep_clients))
                              for n in s.sweep_clients], f"{name}, clients copied"),
            ConvergenceSweep("1/p", [1 / share for share in shares], by_p, kind),
            ConvergenceSweep("kappa", [ell / s.mu for ell in s.sweep_smoothness],
                             [replace(base, smoothness=ell) for ell in s.sweep_smoothness], name),
            ConvergenceSweep("noise", s.sweep_noise,
                             [replace(base, noise=n) for n in s.sweep_noise], name),
            ConvergenceSweep("zeta", s.sweep_spread,
                             [replace(quiet, spread=h) for h in s.sweep_spread],
                             f"{name}, no noise"),
        ]  # fmt: skip
    whole = replace(convergence_base(s), p=1.0, noise=0.0)
    sweeps.append(ConvergenceSweep(
        "zeta", s.sweep_spread,
        [replace(whole, spread=h) for h in s.sweep_spread], "random, p=1, no noise",
    ))  # fmt: skip
    sweeps.append(ConvergenceSweep(
        "kappa", [ell / s.mu for ell in s.sweep_smoothness],
        [replace(whole, smoothness=ell) for ell in s.sweep_smoothness], "random, p=1, no noise",
    ))  # fmt: skip
    return sweeps


def _rolling_name(s: ConvergenceSettings, base: ConvergenceCase) -> str:
    """By what is held: s/d is a whole number of coordinates over d."""
    return f"rolling, s/d={replace(base, rolls=True).share(s):g}"
