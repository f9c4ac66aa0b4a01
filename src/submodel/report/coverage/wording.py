"""What a reader must know to read the coverage of a run right."""

from __future__ import annotations

from collections.abc import Sequence

from submodel.report.coverage.selection import Extent
from submodel.report.coverage.source import HoldingsSource


def notes_of(
    source: HoldingsSource,
    extent: Extent,
    known_rounds: int,
    shown_rounds: int,
    levels: Sequence[float],
) -> tuple[str, ...]:
    """The notes on what is shown, a sentence each.

    Args:
        source: what is known of the run.
        extent: how much there is to show.
        known_rounds: of how many rounds it is known who held what.
        shown_rounds: how many of them are shown.
        levels: the capacities that stand for all.
    """
    notes = []
    if known_rounds < source.rounds_done:
        notes.append(
            f"Who held what is not known of {source.rounds_done - known_rounds} of "
            f"{source.rounds_done} rounds: they were trained before that was recorded, or the "
            "record is damaged."
        )
    if shown_rounds < known_rounds:
        notes.append(
            f"{shown_rounds} of {known_rounds} rounds are shown: the first, the last, and one "
            "drawn from each stretch between them."
        )
    if source.cuts_weights:
        notes.append(
            "Single weights are cut: a tensor's number is the mean number of clients that held one "
            "of its weights, not which weights they were."
        )
    elif wide := [axis for axis in extent.sizes if extent.units_per_column(axis) > 1]:
        notes.append(f"Units stand in groups, shown by their mean, on {', '.join(wide)}.")
    takers = (taker for holdings in source.records.values() for taker in holdings.takers)
    if not {taker.capacity for taker in takers} <= set(levels):
        shares = ", ".join(f"{level:g}" for level in levels)
        notes.append(f"Clients count at the next larger of these capacities: {shares}.")
    if source.config.local.absent_labels not in ("keep", "auto"):
        notes.append("Rows of the classifier that clients leave out by their labels are not shown.")
    return tuple(notes)
