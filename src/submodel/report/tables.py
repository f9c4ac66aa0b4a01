"""Tables printed by commands, and the same data as plain values for ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table
from torch import nn

from submodel.algorithm.types import Setup
from submodel.core.amounts import duration, si
from submodel.core.tables import text_table
from submodel.model.axes import Axes
from submodel.model.cost import BACKWARD, CostModel
from submodel.model.cut import WHOLE, Cut, prefix_cut
from submodel.model.inputs import Inputs
from submodel.model.travel import travel_of
from submodel.report.listing import score_text
from submodel.schemes import Draw, Static
from submodel.schemes.draw import draw_coordinates

if TYPE_CHECKING:
    from submodel.algorithm.score import Score
    from submodel.federation.flower.control import Node
    from submodel.federation.roster import Entry
    from submodel.model.budget import Fit, Needs
    from submodel.runs.folder import RunFolder
    from submodel.runs.forecast import Forecast
    from submodel.runs.open import Run

_BUSY = 0.8  # share of a core below which other programs slowed the trials
_NEAR = 0.99  # share of the global model's score from which no advice is given
_OF_DEVICES = ("client", "device", "state", "capacity", "examples", "answered", "missed",
               "last seen", "last problem")  # fmt: skip


def cost_rows(setup: Setup) -> list[dict[str, float]]:
    """Return the cost of each capacity of a setup, from the nominal size of its cut."""
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
    """Return the rows of `cost_rows` as a table."""
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
    """Return the cost of each capacity of a module."""
    cuts: dict[float, Cut] = {c: prefix_cut(axes, c) for c in capacities}
    return _rows(CostModel(module, example_inputs, travel_of(module, axes)), cuts)


def history_table(history: Sequence[dict[str, Any]], title: str) -> Table:
    """Return a table of a run's evaluated rounds."""
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
    """Return a table of clients' scores in an evaluated round; None if there are none."""
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
        values = [score_text(name, entry[c]) if c in entry else "-" for c in columns]
        cells.append([name, *values])
    title = f"{line.get('client_count', '')} clients, round {line['round']}".strip()
    return text_table(title, ["of clients", *columns], cells)


def _numbers_of_clients(entry: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of one metric by column; entries of a line are untrusted."""
    by_capacity = entry.get("capacity")
    shares = by_capacity if isinstance(by_capacity, Mapping) else {}
    columns = {"mean": entry.get("mean"), "worst quarter": entry.get("worst_quarter")}
    columns |= {f"at {capacity}": value for capacity, value in shares.items()}
    return {name: value for name, value in columns.items() if isinstance(value, int | float)}


def forecast_tables(result: Forecast, rows: Sequence[Mapping[str, float]]) -> list[Table]:
    """Return tables of time by phase, of bytes, and of `cost_rows`."""
    times = [[p.name, duration(p.seconds), p.how] for p in result.phases]
    times.append(
        ["all", duration(result.seconds), f"estimate from {result.trial_seconds:.1f} s of trials"]
    )
    if result.core_share < _BUSY:
        had = f"the trials had {result.core_share:.0%} of a core; other programs took the rest"
        times.append(["all, on idle cores", duration(result.seconds_alone), had])
    sizes = result.quantities
    per_round = sum(row.clients_per_round * (row.bytes_down + row.bytes_up)
                    for row in sizes.by_capacity)  # fmt: skip
    all_processes = f" ({result.processes} processes: each)" if result.processes > 1 else ""
    amounts = [
        ["peak memory", si(sizes.memory, "B"), f"{sizes.memory_how}{all_processes}"],
        ["traffic, down", si(sizes.bytes_down, "B"), f"{result.rounds} rounds, from shapes"],
        ["traffic, up", si(sizes.bytes_up, "B"), f"{result.rounds} rounds, from shapes"],
        ["traffic per round", si(per_round, "B"), "down and up, mean over rounds"],
        *(
            [
                f"traffic of a client of {row.capacity:g}",
                f"{si(row.bytes_down, 'B')} + {si(row.bytes_up, 'B')}",
                f"down + up, per round; {row.clients_per_round:.3g} such clients per round",
            ]
            for row in sizes.by_capacity
        ),
        ["disk", si(sizes.disk, "B"), f"the run's folder; {si(sizes.disk_peak, 'B')} at most"],
    ]
    if sizes.bytes_once:
        amounts.insert(3, ["traffic, once", si(sizes.bytes_once, "B"), "per client, down"])
    return [
        text_table("time", ["phase", "time", "source"], times, ["phase", "source"]),
        text_table("bytes", ["quantity", "amount", "meaning"], amounts, ["quantity", "meaning"]),
        cost_table(rows),
    ]


def evaluation_advice(result: Forecast) -> str:
    """Name the keys that shorten evaluation if it takes long; else return an empty string."""
    if not result.evaluation_keys:
        return ""
    keys = ", ".join(result.evaluation_keys)
    return f"evaluation is {result.evaluation_share:.0%} of the time; shorten it by {keys}"


def plain_forecast(result: Forecast, rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return a forecast as plain values, with the rows of `cost_rows`."""
    seconds = {"seconds": result.seconds, "seconds_alone": result.seconds_alone}
    return {**seconds, **asdict(result), "capacities": list(rows)}


def fit_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return the results of fitting as a table, a row for every capacity."""
    headline = results[0]["headline"]
    headings = (
        *("capacity", "parameters", f"test {headline} before", "fitted", "global model"),
        *("cut", "rounds", "bytes (down + up)", "FLOPs"),
    )
    scores = ("score_before", "score", "global_score")
    rows = [
        (
            f"{r['capacity']:g}",
            f"{r['parameters']:,}",
            *(score_text(headline, r[score][headline]) for score in scores),
            r["cut"],
            f"{r['rounds']}",
            si(r["bytes_down"] + r["bytes_up"], "B"),
            si(r["flops"]),
        )
        for r in results
    ]
    return text_table("fitted sub-models", headings, rows, words=["cut"])


def advice_of_export(run: Run, capacity: float, score: Score, is_fitted: bool) -> str:
    """Compare an exported sub-model with the global model, and advise how to improve it.

    Args:
        run: run of the sub-model.
        capacity: capacity of the sub-model.
        score: its score on the test part.
        is_fitted: whether `submodel fit` trained it.
    """
    summary = run.summary or {}
    name = "accuracy" if score.accuracy is not None else "loss"
    whole, value = summary.get(f"test_{name}"), score.entries()[name]
    if whole is None or (value >= _NEAR * whole if name == "accuracy" else value <= whole / _NEAR):
        return ""
    text = f"the global model has test {name} {score_text(name, whole)}"
    if is_fitted:
        return f"{text}; more rounds ('submodel fit --rounds') or a larger --lr may help"
    command = f"submodel fit {run.folder.path} --capacity {capacity:g}"
    return f"{text}; '{command}' trains this sub-model further"


def plain_end(folder: RunFolder) -> dict[str, Any]:
    """Return the results of a finished run."""
    curves = folder.curves_file if folder.curves_file.is_file() else None
    return {"run": folder.path, "summary": folder.summary(), "curves": curves}


def plain_run(run: Run) -> dict[str, Any]:
    """Return the present state of a run."""
    config, history = run.config, run.history
    is_finished = run.finished
    return {
        "run": run.folder.path,
        "finished": is_finished,
        "round": history[-1]["round"] if history else 0,
        "rounds": config.train.rounds,
        "config": config.model_dump(mode="json", exclude_none=True),
        "history": history,
        "damage": run.folder.describe_damage() or None,
        "summary": run.summary if is_finished else None,
    }


def plain_axes(
    axes: Axes, is_verified: bool, capacities: Sequence[Mapping[str, float]]
) -> dict[str, Any]:
    """Return the axes of a model as plain values.

    Args:
        axes: axes of the model.
        is_verified: whether every axis was verified by permutation.
        capacities: cost of each capacity.
    """
    rows = []
    for axis, size in axes.sizes.items():
        members = [
            f"{name}[{dimension}]"
            for name, layouts in axes.layouts.items()
            for dimension, layout in enumerate(layouts)
            if axis in layout.axes()
        ]
        rows.append(
            {
                "axis": axis,
                "size": size,
                "members": members,
                "cut_by_capacity": axis in axes.cut_by_capacity,
                "kept_whole": axes.kept_whole.get(axis),
                "inexact": list(axes.inexact.get(axis, ())),
            }
        )
    return {
        "axes": rows,
        "frozen": dict(axes.frozen),
        "lines": dict(axes.lines),
        "unused_tensors": list(axes.unused_tensors),
        "exact": axes.exact,
        "measured": list(axes.measured),
        "doubt": axes.doubt if axes.exact is None else None,
        "notes": list(axes.notes),
        "verified": is_verified,
        "capacities": list(capacities),
    }


def plain_fit(fit: Fit, limits: Mapping[str, float], batch: int) -> dict[str, Any]:
    """Return the largest capacity within limits, and its needs, as plain values."""
    return {
        "capacity": fit.capacity,
        "limits": limits,
        "batch_size": batch,
        "needs": _plain_needs(fit.needs),
        "next_larger": _plain_needs(fit.too_large),
    }


def _plain_needs(needs: Needs | None) -> dict[str, int] | None:
    return None if needs is None else {"memory": needs.memory, **asdict(needs)}


def describe_fit(fit: Fit, limits: Mapping[str, float], batch: int) -> list[str]:
    """Describe the largest capacity within limits in lines for the terminal."""
    limit_text = ", ".join(f"{what} {si(most)}" for what, most in limits.items())
    if fit.capacity is None:
        lines = [f"no capacity fits {limit_text}: one unit of every axis needs"]
    else:
        lines = [f"capacity {fit.capacity:g} fits {limit_text}: at batch size {batch} it needs"]
    for needs, text in ((fit.needs, "  "), (fit.too_large, "  the next larger capacity: ")):
        if needs is not None:
            lines.append(f"{text}memory {needs.arithmetic()}; {si(needs.flops)} FLOPs per step; "
                         f"{si(needs.traffic, 'B')} per round")  # fmt: skip
    return lines


def plain_devices(entries: Sequence[Entry], nodes: Mapping[int, Node]) -> list[dict[str, Any]]:
    """Return the devices of a run, then registered ones that have not taken part."""
    rows: list[dict[str, Any]] = []
    for entry in entries:
        node, report = nodes.get(entry.node), entry.report
        last_seen = datetime.fromtimestamp(entry.last_seen, UTC) if entry.last_seen else None
        if node is not None and node.last_seen is not None:
            last_seen = max(last_seen or node.last_seen, node.last_seen)
        rows.append(
            {
                "client": entry.client,
                "device": report.name,
                "state": node.status if node is not None else "unknown",
                "capacity": report.capacity,
                "examples": report.examples,
                "answered": entry.answered,
                "missed": entry.missed,
                "last_seen": _iso(last_seen),
                "last_problem": entry.last_problem,
            }
        )
    unknown = dict.fromkeys(("capacity", "examples", "answered", "missed"))
    for node in nodes.values():
        if node.id in {entry.node for entry in entries}:
            continue
        rows.append(
            {
                "client": None,
                "device": node.fingerprint or str(node.id),
                "state": node.status,
                **unknown,
                "last_seen": _iso(node.last_seen),
                "last_problem": "",
            }
        )
    return rows


def devices_table(devices: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows of `plain_devices` as a table."""
    table = Table()
    for heading in _OF_DEVICES:
        table.add_column(heading, overflow="fold")
    for row in devices:
        cells = {**row, "last_seen": "never"}
        if row["client"] is not None:
            capacity = row["capacity"]
            cells["capacity"] = "as configured" if capacity is None else f"{capacity:g}"
        if row["last_seen"] is not None:
            moment = datetime.fromisoformat(row["last_seen"])
            cells["last_seen"] = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
        table.add_row(*("-" if cell is None else str(cell) for cell in cells.values()))
    return table


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")
