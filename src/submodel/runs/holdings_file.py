"""Files with the units that clients held in every round: ``coverage.jsonl`` and ``layers.json``.

Training does not depend on them. Missing or damaged parts are missing from figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from submodel.algorithm.round_statistics import Holdings, SharedCut
from submodel.algorithm.types import Assignment
from submodel.core.files import UnreadableError, bounded_lines, parse_typed, read_typed, write_text
from submodel.model.inspect import ModelLayer

_LONGEST = 2**23  # bytes of a line
_MOST_LAYERS = 2**25  # bytes of layers.json
_MOST_UNITS = 2**24  # limit of an axis
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Share = Annotated[float, Field(gt=0, le=1)]


class _Cut(TypedDict):
    """Units that some clients held, by axis."""

    clients: list[_Count]
    units: dict[str, str]


class _Line(TypedDict):
    """Line of a round in ``coverage.jsonl``."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]
    round: Annotated[int, Field(ge=1, le=2**53)]
    clients: list[_Count]
    capacities: list[_Share]
    places: NotRequired[list[_Count]]
    cuts: NotRequired[list[_Cut]]
    weights: NotRequired[list[tuple[_Share, list[_Count]]]]


_LINE: TypeAdapter[Any] = TypeAdapter(_Line)


@dataclass(frozen=True)
class ModelOutline:
    """Outline of a run's model, the content of ``layers.json``.

    Args:
        axes: number of units of each axis that capacities cut.
        layers: layers with parameters, in the order of the forward pass.
    """

    axes: Mapping[str, int]
    layers: tuple[ModelLayer, ...]


_OUTLINE: TypeAdapter[ModelOutline] = TypeAdapter(ModelOutline)


def holdings_line(round_: int, holdings: Holdings) -> str:
    """Format the line of a round, counted from 1.

    >>> holdings_line(1, Holdings((Assignment(0, 7, 0.5),))).strip()
    '{"round":1,"clients":[7],"capacities":[0.5]}'
    """
    places = [participant.place for participant in holdings.participants]
    line = {
        "round": round_,
        "clients": [participant.client for participant in holdings.participants],
        "capacities": [participant.capacity for participant in holdings.participants],
    }
    if places != list(range(len(places))):  # some clients did not answer
        line["places"] = places
    if holdings.cuts:
        line["cuts"] = [{"clients": cut.clients, "units": cut.units} for cut in holdings.cuts]
    if holdings.weights:
        line["weights"] = list(holdings.weights.items())
    return json.dumps(line, separators=(",", ":")) + "\n"


def parse_holdings(text: bytes) -> tuple[int, Holdings]:
    """Parse the line of a round into its number, from 1, and the holdings.

    Raises `UnreadableError` for any other text.

    >>> parse_holdings(b'{"round":1,"clients":[7],"capacities":[0.5]}')[1].participants
    (Assignment(round=0, client=7, capacity=0.5, place=0),)
    """
    line = parse_typed(_LINE, text)
    round_, clients, capacities = line["round"], line["clients"], line["capacities"]
    places = line.get("places", range(len(clients)))
    if not len(clients) == len(capacities) == len(places):
        raise UnreadableError(f"round {round_}: unequal numbers of clients, capacities and places")
    participants = [
        Assignment(round_ - 1, client, capacity, place)
        for client, capacity, place in zip(clients, capacities, places, strict=True)
    ]
    cuts = [SharedCut(tuple(cut["clients"]), cut["units"]) for cut in line.get("cuts", ())]
    weights = {capacity: tuple(counts) for capacity, counts in line.get("weights", ())}
    return round_, Holdings(tuple(participants), tuple(cuts), weights)


def read_holdings(path: Path) -> dict[int, Holdings]:
    """Read the holdings in a file by round, from 1; skip damaged lines, allow a missing file."""
    holdings: dict[int, Holdings] = {}
    for text in bounded_lines(path, _LONGEST):
        try:
            round_, entry = parse_holdings(text)
        except UnreadableError:
            continue
        holdings.setdefault(round_, entry)
    return holdings


def keep_holdings(path: Path, rounds: int) -> None:
    """Drop the lines after ``rounds``, which will be written again, and damaged ones."""
    if not path.is_file():
        return
    holdings = read_holdings(path)
    lines = (holdings_line(n, entry) for n, entry in sorted(holdings.items()) if n <= rounds)
    write_text(path, "".join(lines))


def read_model_outline(path: Path) -> ModelOutline | None:
    """Read the outline of the model; None if it cannot be read."""
    try:
        outline = read_typed(_OUTLINE, path, _MOST_LAYERS)
    except UnreadableError:
        return None
    names = {axis for layer in outline.layers for axis in layer.axes}
    has_sizes = all(0 < size <= _MOST_UNITS for size in outline.axes.values())
    return outline if has_sizes and names <= outline.axes.keys() else None


def write_model_outline(path: Path, outline: ModelOutline) -> None:
    """Write the outline of the model, unless the file already has it."""
    if read_model_outline(path) != outline:
        write_text(path, json.dumps(asdict(outline), separators=(",", ":")) + "\n")
