"""Generate the import graph as text: a diagram of the packages, and a table of their imports."""

from __future__ import annotations

from tools.packages import Packages


def diagram(packages: Packages) -> str:
    """Format the packages as a Mermaid diagram without transitive arrows."""
    edges = [f"    {by} --> {to}" for by, to in packages.edges]
    return "\n".join(["```mermaid", "flowchart TD", *edges, "```"])


def table(packages: Packages) -> str:
    """Tabulate the imports of every package with their number."""
    lines = ["| package | imports, with their number (pairs of modules) |", "| --- | --- |"]
    for package in packages.names[:-1]:
        counts = (f"{to} {count}" for to, count in packages.below(package).items())
        lines.append(f"| `{package}` | {', '.join(counts)} |")
    return "\n".join(lines)


def section(packages: Packages) -> str:
    """Return the generated part of docs/architecture.md."""
    return f"{diagram(packages)}\n\n{table(packages)}"
