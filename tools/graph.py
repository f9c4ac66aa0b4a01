"""The import graph as text: a diagram of the rooms, and a table of how often each imports which."""

from __future__ import annotations

from tools.rooms import GROUND, Rooms


def diagram(rooms: Rooms) -> str:
    """The rooms as Mermaid draws them; what follows from other arrows is left out."""
    lines = ["```mermaid", "flowchart TD"]
    for room in rooms.names:
        label = "<br/>".join(_in_lines(rooms.files)) if room == GROUND else room
        lines.append(f'    {room}["{label}"]')
    lines += [f"    {by} --> {to}" for by, to in rooms.edges]
    return "\n".join([*lines, "```"])


def _in_lines(files: tuple[str, ...]) -> list[str]:
    half = (len(files) + 1) // 2
    return [" · ".join(files[:half]), " · ".join(files[half:])]


def table(rooms: Rooms) -> str:
    """Who imports whom, and how often."""
    lines = ["| room | imports, and how many (pairs of modules) |", "| --- | --- |"]
    for room in rooms.names[:-1]:
        counts = (f"{to} {count}" for to, count in rooms.below(room).items())
        lines.append(f"| `{room}` | {', '.join(counts)} |")
    return "\n".join(lines)


def section(rooms: Rooms) -> str:
    """What stands between the markers in docs/architecture.md."""
    return f"{diagram(rooms)}\n\n{table(rooms)}"
