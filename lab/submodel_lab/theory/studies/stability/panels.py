"""The figure of the study: along N n, along p with both controls, and the gap beside its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from submodel_lab.theory.drawing import Panel, PlotLine, guide_through
from submodel_lab.theory.measures import Measure
from submodel_lab.theory.studies.stability.cases import (
    StabilityCase,
    StabilitySettings,
    stability_base,
)
from submodel_lab.theory.studies.stability.points import GRADIENT, StabilityPoint

StabilityPoints = dict[StabilityCase, StabilityPoint]
Controls = Mapping[
    StabilityCase, Mapping[str, tuple[StabilityPoint, Callable[[StabilityPoint], Measure]]]
]
"""Of each masked case the full models beside it."""


def stability_panels(
    s: StabilitySettings,
    chains: Sequence[Sequence[StabilityCase]],
    controls: Controls,
    points: StabilityPoints,
) -> list[Panel]:
    """All panels."""
    base = stability_base(s)

    def along_examples(p: float, rolls: bool, iterate: bool) -> PlotLine:
        cases = [replace(base, p=p, n=n, rolls=rolls) for n in s.examples]
        run = [points[case] for case in cases]
        measures = [point.iterate if iterate else point.output for point in run]
        x = [float(case.clients * case.n) for case in cases]
        return PlotLine.of_measures(cases[0].words(s), x, measures, "--s" if rolls else "-o")

    several = [(p, False) for p in s.capacities] + [(1.0, True), (base.p, True)]
    outputs, iterates = (
        [along_examples(p, rolls, iterate) for p, rolls in several] for iterate in (False, True)
    )
    clients = [
        PlotLine.of_measures(
            replace(base, p=p, rolls=rolls).words(s), [float(c * base.n) for c in s.clients],
            [points[replace(base, p=p, rolls=rolls, clients=c)].output for c in s.clients],
            "--s" if rolls else "-o",
        )
        for rolls in (False, True) for p in dict.fromkeys((1.0, base.p))
    ]  # fmt: skip
    where = f"N={base.clients}, n={base.n}"
    gaps = [points[case] for case in sorted(chains[0], key=lambda case: case.p)]
    shares = [point.share for point in gaps]
    sizes = [Measure.of(abs(p.gap.values)) for p in gaps if p.gap.values is not None]
    return [
        Panel("the output w^, n varies", "N n", "E||w^ - w^'||", outputs,
              [guide_through(outputs[0], -0.5, "Theorems 5, 6")]),
        Panel("the iterate w_R, before the output step, n varies", "N n", "E||w_R - w_R'||",
              iterates, [guide_through(iterates[0], -0.5, "Theorems 5, 6")]),
        Panel("the output w^, N varies", "N n", "E||w^ - w^'||", clients,
              [guide_through(clients[0], -0.5, "Theorems 5, 6")]),
        Panel(f"by what is held, equal step and rounds, {where}", "share held", "E||w^ - w^'||",
              [PlotLine.of_measures("rolling" if chain[0].rolls else "random",
                                    [points[c].share for c in reversed(chain)],
                                    [points[c].output for c in reversed(chain)])
               for chain in chains], log=(False, False)),
        _control_panel(chains[0], controls, points, where),
        Panel(f"the gap and G x stability, random, {where}", "p", "loss",
              [PlotLine.of_measures("E(risk - training loss)", shares, [p.gap for p in gaps]),
               PlotLine.of_measures("E|risk - training loss|", shares, sizes),
               PlotLine.of_measures("G E||w^ - w^'||", shares,
                                    [p.output.times(GRADIENT) for p in gaps], "k--s")],
              log=(False, False)),
    ]  # fmt: skip


def _control_panel(
    chain: Sequence[StabilityCase], controls: Controls, points: StabilityPoints, where: str
) -> Panel:
    """Distances over training losses: masked models, and full ones with smaller steps."""
    name = "equal training loss, w_R"
    masked_points = [points[case] for case in chain]
    full_points = [controls[case][name][0] for case in chain if name in controls.get(case, {})]
    full_points = sorted([masked_points[0], *full_points], key=lambda p: p.iterate_loss.mean)
    masked_points = sorted(masked_points, key=lambda p: p.iterate_loss.mean)
    lines = [
        PlotLine.of_measures(label, [round(p.iterate_loss.mean, 3) for p in run],
                             [p.iterate for p in run], style)
        for label, run, style in (("masked, p from right to left larger", masked_points, "-o"),
                                  ("full, smaller steps", full_points, "--s"))
    ]  # fmt: skip
    return Panel(f"control: at equal training loss, {where}", "training loss of w_R",
                 "E||w_R - w_R'||", lines, log=(False, False))  # fmt: skip
