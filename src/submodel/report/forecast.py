"""The forecast of a run for people, as tables, and for programs, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from submodel.amounts import duration, si
from submodel.presentation.tables import text_table
from submodel.report.tables import cost_table
from submodel.runs.forecast import Forecast

_BUSY = 0.8  # of a core: who has less shares it


def forecast_tables(result: Forecast, rows: Sequence[Mapping[str, float]]) -> list[Table]:
    """Time by phase, bytes, and what each capacity costs.

    Args:
        result: the forecast.
        rows: of `cost_rows`.
    """
    times = [[p.name, duration(p.seconds), p.how] for p in result.phases]
    times.append(
        ["all", duration(result.seconds), f"an estimate, by {result.trial_seconds:.1f} s of trials"]
    )
    if result.core_share < _BUSY:
        had = f"the trials had {result.core_share:.0%} of a core: other programs compute here, too"
        times.append(["all, with cores of its own", duration(result.seconds_alone), had])
    sizes = result.quantities
    per_round = sum(row.clients_per_round * (row.bytes_down + row.bytes_up)
                    for row in sizes.by_capacity)  # fmt: skip
    all_processes = f" ({result.processes} processes: each)" if result.processes > 1 else ""
    amounts = [
        ["peak memory", si(sizes.memory, "B"), f"{sizes.memory_how}{all_processes}"],
        ["traffic, down", si(sizes.bytes_down, "B"), f"{result.rounds} rounds, from shapes"],
        ["traffic, up", si(sizes.bytes_up, "B"), f"{result.rounds} rounds, from shapes"],
        ["traffic per round", si(per_round, "B"), "down and up, the mean over rounds"],
        *(
            [
                f"traffic of a client of {row.capacity:g}",
                f"{si(row.bytes_down, 'B')} + {si(row.bytes_up, 'B')}",
                f"down + up, per round; {row.clients_per_round:.3g} such clients in a round",
            ]
            for row in sizes.by_capacity
        ),
        ["disk", si(sizes.disk, "B"), f"the run's folder; {si(sizes.disk_peak, 'B')} at most"],
    ]
    if sizes.bytes_once:
        amounts.insert(3, ["traffic, once", si(sizes.bytes_once, "B"), "per client, down"])
    return [
        text_table(
            "time", ["phase", "time", "how it is known"], times, ["phase", "how it is known"]
        ),
        text_table("bytes", ["what", "amount", "of what"], amounts, ["what", "of what"]),
        cost_table(rows),
    ]


def evaluation_advice(result: Forecast) -> str:
    """What makes a run shorter of which evaluations are a large part; empty of another.

    Args:
        result: the forecast.
    """
    if not result.evaluation_keys:
        return ""
    keys = ", ".join(result.evaluation_keys)
    return f"evaluation is {result.evaluation_share:.0%} of the time; it is shorter by {keys}"


def plain_forecast(result: Forecast, rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """All of it, as plain values.

    Args:
        result: the forecast.
        rows: of `cost_rows`.
    """
    seconds = {"seconds": result.seconds, "seconds_alone": result.seconds_alone}
    return {**seconds, **asdict(result), "capacities": list(rows)}
