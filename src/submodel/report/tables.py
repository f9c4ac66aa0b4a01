"""The tables that commands print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from torch import nn

from submodel.algorithm.types import Setup
from submodel.amounts import si
from submodel.model.axes import Axes
from submodel.model.capacity import prefix_cut
from submodel.model.cost import BACKWARD, CostModel
from submodel.model.cut import WHOLE, Cut
from submodel.model.inputs import Inputs
from submodel.model.travel import travel_of
from submodel.presentation.tables import text_table
from submodel.schemes import Draw, Static
from submodel.schemes.draw import draw_coordinates


def cost_rows(setup: Setup) -> list[dict[str, float]]:
    """What each capacity of a setup costs, by the nominal size of its cut."""
    costs = CostModel(setup.module, setup.clients.dataset.example, setup.travel)
    capacities = sorted({1.0, *setup.population.capacities}, reverse=True)
    draw = Draw(0, 0, 0)
    if setup.granularity == "unit":
        cuts: list[Cut] = [prefix_cut(setup.axes, c, least=setup.least) for c in capacities]
    else:
        parameters = {n: p.detach() for n, p in setup.module.named_parameters()}
        cuts = [draw_coordinates(Static(), setup.axes, parameters, c, draw) for c in capacities]
    return _rows(costs, dict(zip(capacities, cuts, strict=True)))


def _rows(costs: CostModel, cuts: Mapping[float, Cut]) -> list[dict[str, float]]:
    whole = costs.of(WHOLE)
    rows = []
    for capacity, cut in cuts.items():
        cost = costs.of(cut)
        rows.append(
            {
                "capacity": capacity,
                "parameters": cost.parameters,
                "share": cost.parameters / whole.parameters,
                "bytes": cost.traffic,
                "flops": BACKWARD * cost.forward_flops,
                "flops_share": cost.forward_flops / max(1, whole.forward_flops),
            }
        )
    return rows


def cost_table(rows: Sequence[Mapping[str, float]]) -> Table:
    """`cost_rows` for people."""
    headings = (
        *("capacity", "parameters", "of full", "bytes per round (down + up)"),
        *("FLOPs per training example", "of full"),
    )
    cells = [
        [
            f"{row['capacity']:g}",
            f"{int(row['parameters']):,}",
            f"{row['share']:.1%}",
            si(row["bytes"], "B"),
            si(row["flops"]),
            f"{row['flops_share']:.1%}",
        ]
        for row in rows
    ]
    return text_table("cost of one client by capacity", headings, cells)


def module_cost_rows(
    module: nn.Module, axes: Axes, example_inputs: Inputs, capacities: Sequence[float]
) -> list[dict[str, float]]:
    """What each capacity of a bare module costs."""
    cuts: dict[float, Cut] = {c: prefix_cut(axes, c) for c in capacities}
    return _rows(CostModel(module, example_inputs, travel_of(module, axes)), cuts)


def history_table(history: Sequence[dict[str, Any]], title: str) -> Table:
    """The evaluated rounds of a run."""
    evaluated_lines = [line for line in history if "test_loss" in line]
    has_accuracy = not evaluated_lines or "test_accuracy" in evaluated_lines[0]
    by_capacity, form = ("capacity_accuracy", ".1%") if has_accuracy else ("capacity_loss", ".4f")
    at = "at" if has_accuracy else "loss at"
    capacities = list(evaluated_lines[0].get(by_capacity, {})) if evaluated_lines else []
    headings = ["round", "train loss", "test loss", "test accuracy"]
    headings += [f"{at} {c}" for c in capacities if float(c) < 1]
    observation_names = list(evaluated_lines[0].get("observed", {})) if evaluated_lines else []
    headings += observation_names
    table = text_table(title, [*headings, "units covered", "traffic", "refused"])
    traffic, position = 0, {}
    for line in history:
        traffic += line["bytes_down"] + line["bytes_up"]
        position[line["round"]] = traffic
    for line in evaluated_lines:
        accuracy = line.get("test_accuracy")
        table.add_row(
            str(line["round"]),
            f"{line['train_loss']:.4f}",
            f"{line['test_loss']:.4f}",
            "-" if accuracy is None else f"{accuracy:.1%}",
            *(f"{line[by_capacity][c]:{form}}" for c in capacities if float(c) < 1),
            *(
                f"{line['observed'][n]:.4f}" if n in line.get("observed", {}) else "-"
                for n in observation_names
            ),
            f"{line['coverage']['units']:.0%}",
            si(position[line["round"]], "B"),
            str(len(line["refused"])),
        )
    return table


def clients_table(line: Mapping[str, Any]) -> Table | None:
    """How clients fare in an evaluated round; None where they were not scored."""
    entries = {
        key.removeprefix("client_"): _numbers_of_clients(value)
        for key, value in line.items()
        if key.startswith("client_") and isinstance(value, Mapping)
    }
    columns = list(dict.fromkeys(column for entry in entries.values() for column in entry))
    if not columns:
        return None
    cells = []
    for name, entry in entries.items():
        form = ".1%" if name == "accuracy" else ".4f"
        values = [f"{entry[column]:{form}}" if column in entry else "-" for column in columns]
        cells.append([name, *values])
    title = f"{line.get('client_count', '')} clients, round {line['round']}".strip()
    return text_table(title, ["of clients", *columns], cells)


def _numbers_of_clients(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of one metric by the headings of their columns; a line may hold anything."""
    by_capacity = entry.get("capacity")
    shares = by_capacity if isinstance(by_capacity, Mapping) else {}
    columns = {"mean": entry.get("mean"), "worst quarter": entry.get("worst_quarter")}
    columns |= {f"at {capacity}": value for capacity, value in shares.items()}
    return {name: value for name, value in columns.items() if isinstance(value, int | float)}
