"""The tables that commands print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from submodel.cost import BACKWARD, CostModel
from submodel.cut import WHOLE, draw_coordinates, draw_units
from submodel.rounds import Setup
from submodel.schemes import Draw, Static


def _si(value: float, unit: str = "") -> str:
    """A number with a prefix: 1.23 M.

    >>> _si(1234567, "B"), _si(12)
    ('1.23 MB', '12')
    """
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def cost_rows(setup: Setup) -> list[dict[str, float]]:
    """What each capacity costs, by the nominal size of its cut, beside the full model."""
    costs = CostModel(setup.module, setup.federation.dataset.example)
    whole = costs.of(WHOLE)
    rows = []
    for capacity in sorted({1.0, *setup.population.capacities}, reverse=True):
        if setup.granularity == "unit":
            cost = costs.of(draw_units(Static(), setup.axes, capacity, Draw(0, 0, 0)))
        else:
            parameters = {n: p.detach() for n, p in setup.module.named_parameters()}
            draw = Draw(0, 0, 0)
            cost = costs.of(draw_coordinates(Static(), setup.axes, parameters, capacity, draw))
        rows.append(
            {
                "capacity": capacity,
                "parameters": cost.parameters,
                "share": cost.parameters / whole.parameters,
                "bytes": 2 * cost.bytes,
                "flops": BACKWARD * cost.forward_flops,
                "flops_share": cost.forward_flops / max(1, whole.forward_flops),
            }
        )
    return rows


def cost_table(setup: Setup) -> Table:
    """`cost_rows` for people."""
    table = Table(title="cost of one client by capacity")
    for heading in (
        "capacity",
        "parameters",
        "of full",
        "bytes per round (down + up)",
        "FLOPs per training example",
        "of full",
    ):
        table.add_column(heading, justify="right")
    for row in cost_rows(setup):
        table.add_row(
            f"{row['capacity']:g}",
            f"{int(row['parameters']):,}",
            f"{row['share']:.1%}",
            _si(row["bytes"], "B"),
            _si(row["flops"]),
            f"{row['flops_share']:.1%}",
        )
    return table


def history_table(history: Sequence[dict[str, Any]], title: str) -> Table:
    """The evaluated rounds of a run."""
    measured = [line for line in history if "test_loss" in line]
    capacities = list(measured[0].get("capacity_accuracy", {})) if measured else []
    table = Table(title=title)
    headings = ["round", "train loss", "test loss", "test accuracy"]
    headings += [f"at {c}" for c in capacities if float(c) < 1]
    for heading in [*headings, "units covered", "traffic", "refused"]:
        table.add_column(heading, justify="right")
    traffic, position = 0, {}
    for line in history:
        traffic += line["bytes_down"] + line["bytes_up"]
        position[line["round"]] = traffic
    for line in measured:
        accuracy = line.get("test_accuracy")
        table.add_row(
            str(line["round"]),
            f"{line['train_loss']:.4f}",
            f"{line['test_loss']:.4f}",
            "-" if accuracy is None else f"{accuracy:.1%}",
            *(f"{line['capacity_accuracy'][c]:.1%}" for c in capacities if float(c) < 1),
            f"{line['coverage']['units']:.0%}",
            _si(position[line["round"]], "B"),
            str(len(line["refused"])),
        )
    return table
