"""The devices of a run: a table for people, plain values for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:  # an extra: imported where it is used
    from submodel.federation.flower.control import Node
    from submodel.federation.roster import Entry

_HEADINGS = ("client", "device", "state", "capacity", "examples", "answered", "missed",
             "last seen", "last problem")  # fmt: skip


def plain_devices(entries: Sequence[Entry], nodes: Mapping[int, Node]) -> list[dict[str, Any]]:
    """The devices of a run, and those that are registered but have not taken part.

    Args:
        entries: who took part.
        nodes: who is registered, by number.
    """
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
    registered_only = [n for n in nodes.values() if n.id not in {entry.node for entry in entries}]
    for node in registered_only:
        unknown = dict.fromkeys(("capacity", "examples", "answered", "missed"))
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


def device_table(entries: Sequence[Entry], nodes: Mapping[int, Node]) -> Table:
    """The same for people.

    Args:
        entries: who took part.
        nodes: who is registered, by number.
    """
    table = Table()
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold")
    for row in plain_devices(entries, nodes):
        takes_part = row["client"] is not None
        capacity = "as configured" if row["capacity"] is None else f"{row['capacity']:g}"
        cells = [row["client"], row["device"], row["state"], capacity if takes_part else None]
        cells += [row["examples"], row["answered"], row["missed"]]
        table.add_row(
            *("-" if cell is None else str(cell) for cell in cells),
            _when(row["last_seen"]),
            row["last_problem"],
        )
    return table


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="seconds")


def _when(moment: str | None) -> str:
    if moment is None:
        return "never"
    return f"{datetime.fromisoformat(moment):%Y-%m-%d %H:%M:%S} UTC"
