"""A study on the terminal: a table of what was measured, and one of what that says of theorems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from submodel_lab.theory.verdicts import Statement

if TYPE_CHECKING:
    from submodel_lab.theory.results import ResultRow

_CONDITION = "condition"  # the fact that says whether a theorem's conditions are met
_SETTING = "setting"  # the column of what is not usual
_MOST_QUANTITIES = 6  # in one table


def number_tables(rows: Sequence[ResultRow], title: str) -> list[Table]:
    """What was measured, one setting a line; one table for every few quantities.

    What all rows share stands under the last table. So does the usual value of a parameter, one
    that more than half of the rows have: it is named only where it differs.

    Args:
        rows: The settings, and what was measured there.
        title: Over them.
    """
    parameters = [_without_repeats(row.parameters) for row in rows]
    facts = [{n: v for n, v in row.facts.items() if n != _CONDITION} for row in rows]
    shared = _shared_values(parameters) | _shared_values(facts)
    usual = {n: v for n, v in _usual_values(parameters).items() if n not in shared}
    settings, numbers = [], []
    for row, own_parameters, own_facts in zip(rows, parameters, facts, strict=True):
        settings.append({_SETTING: _name_setting(row, own_parameters, usual)} | {
            n: _format_cell(v) for n, v in own_parameters.items()
            if n not in shared and n not in usual
        })  # fmt: skip
        numbers.append(_measure_cells(row) | {
            n: _format_cell(v) for n, v in own_facts.items() if n not in shared
        })  # fmt: skip
    if not any(line[_SETTING] for line in settings):
        settings = [{n: v for n, v in line.items() if n != _SETTING} for line in settings]
    names, quantities = _all_names(settings), _all_names(numbers)
    tables = []
    for start in range(0, max(1, len(quantities)), _MOST_QUANTITIES):
        part = [*names, *quantities[start : start + _MOST_QUANTITIES]]
        tables.append(Table(title=title if not start else None))
        for name in part:
            tables[-1].add_column(name, overflow="fold")
        for line, own_numbers in zip(settings, numbers, strict=True):
            tables[-1].add_row(*((line | own_numbers).get(name, "") for name in part))
    tables[-1].caption, tables[-1].caption_justify = _caption(shared, usual), "left"
    return tables


def statement_table(claims: Iterable[Statement], title: str) -> Table:
    """Claims, one a line.

    Args:
        claims: Which.
        title: Over them.
    """
    table = Table(title=title)
    for name in ("of", "in", "case", "quantity", "measured", "exact", "stated", "holds"):
        table.add_column(name, overflow="fold")
    for claim in claims:
        m = claim.measure
        measured_text = format_number(m.mean)
        if m.low != m.high:
            measured_text += f" [{format_number(m.low)}, {format_number(m.high)}]"
        limit_text = "" if claim.limit is None else f"{claim.relation} {format_number(claim.limit)}"
        verdict = str(claim.verdict) + ("" if claim.conditions == "met" else " *")
        table.add_row(
            claim.source,
            claim.parameter,
            claim.case,
            claim.quantity,
            measured_text,
            "" if m.exact is None else format_number(m.exact),
            limit_text,
            verdict,
        )
    return table


def format_number(number: float) -> str:
    """Four digits, and no more places than a reader needs.

    Args:
        number: Any.

    >>> format_number(0.123456), format_number(-1.0)
    ('0.1235', '-1')
    """
    return f"{number:.4g}"


def _without_repeats(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The share that is held is worth a word only where it is not p."""
    return {n: v for n, v in parameters.items() if n != "share" or v != parameters.get("p")}


def _name_setting(row: ResultRow, parameters: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    """The first parameter, and those that are not as usual; a star outside the conditions."""
    first = next(iter(parameters), "")
    words = [
        _name_value(name, value)
        for name, value in parameters.items()
        if name in usual and (name == first or value != usual[name])
    ]
    star = "*" if str(row.facts.get(_CONDITION, "")).startswith("not met") else ""
    return f"{', '.join(word for word in words if word)} {star}".strip()


def _all_names(lines: Iterable[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for line in lines for name in line))


def _measure_cells(row: ResultRow) -> dict[str, str]:
    """The mean, its interval, and the exact value."""
    cells = {}
    for name, measure in row.measures.items():
        cells[name] = format_number(measure.mean)
        if measure.high > measure.low:
            cells[name] += f" [{format_number(measure.low)}, {format_number(measure.high)}]"
            if measure.exact is not None:
                cells[name] += f" ({format_number(measure.exact)})"
    return cells


def _shared_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is the same in all rows, of several."""
    if len(rows) < 2:
        return {}
    first, others = rows[0], rows[1:]
    return {n: v for n, v in first.items() if all(n in row and row[n] == v for row in others)}


def _usual_values(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What more than half of the rows have; "" of what more than half of them lack."""
    counts = {name: Counter(row.get(name, "") for row in rows) for row in rows for name in row}
    most = {name: counter.most_common(1)[0] for name, counter in counts.items()}
    return {name: value for name, (value, count) in most.items() if 2 * count > len(rows)}


def _caption(shared: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    parts = []
    if shared:
        parts.append("all rows: " + ", ".join(_name_all(shared)))
    if usual_words := _name_all(usual):
        parts.append("where nothing else is said: " + ", ".join(usual_words))
    parts.append("95 % intervals are in [ ], exact values in ( )")
    return "; ".join(parts)


def _name_all(values: Mapping[str, Any]) -> list[str]:
    return [f"{name} = {_format_cell(value)}" for name, value in values.items() if value != ""]


def _name_value(name: str, value: Any) -> str:
    """Words speak for themselves, numbers need their name."""
    return value if isinstance(value, str) else f"{name} = {_format_cell(value)}"


def _format_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, float) else str(value)
