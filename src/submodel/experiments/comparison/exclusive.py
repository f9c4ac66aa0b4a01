"""The way ``exclusive``: a model of every width, each trained by those alone who can hold it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from submodel.config import Config
from submodel.experiments.comparison.together import put_together
from submodel.experiments.comparison.ways import EXCLUSIVE, Way
from submodel.experiments.records import VariantRecord


@dataclass(frozen=True)
class WayRuns:
    """The runs that a way has for each seed: one, or one for every capacity.

    Args:
        way: as it was given.
        parts: what is run for it.
        capacities: of the parts, where each has its own; else none.
    """

    way: Way
    parts: Sequence[Way]
    capacities: Sequence[float] = field(default=())

    def record(self, records: Mapping[str, VariantRecord]) -> VariantRecord:
        """What the way came to.

        Args:
            records: of the parts, by slug.
        """
        own_records = [records[part.slug] for part in self.parts]
        if not self.capacities:
            return own_records[0]
        by_capacity = dict(zip(self.capacities, own_records, strict=True))
        return put_together(self.way.slug, by_capacity)


def runs_of(way: Way, base: Callable[[Sequence[str]], Config]) -> WayRuns:
    """The runs of a way; of ``exclusive`` one for every capacity that the clients have.

    Args:
        way: as it was given.
        base: what all ways have in common, from settings to a configuration.

    >>> from submodel.config import override, parse
    >>> from submodel.experiments.comparison.ways import parse_ways
    >>> base = lambda settings: parse(override({"clients": {"capacities": [1, 0.5]}}, settings))
    >>> [part.slug for part in runs_of(parse_ways("exclusive")[0], base).parts]
    ['exclusive-at-1', 'exclusive-at-0.5']
    """
    if way.scheme != EXCLUSIVE:
        return WayRuns(way, [way])
    whole = Way(way.text, way.slug, "full", way.settings)
    config = whole.config(base)
    capacities = sorted(set(config.clients.capacities), reverse=True)
    no_scaler = (("model.scaler", "false"),) if getattr(config.model, "scaler", False) else ()
    parts = [
        Way(
            way.text,
            f"{way.slug}-at-{capacity:g}",
            "full",
            (
                *way.settings,
                ("model.share", repr(capacity)),
                ("clients.least", repr(capacity)),
                *no_scaler,
            ),
        )
        for capacity in capacities
    ]
    return WayRuns(way, parts, capacities)
