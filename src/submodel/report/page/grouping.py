"""Runs that differ in nothing but their seeds are a group; what tells groups apart names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from submodel.config.reading import shorten
from submodel.report.grouping import way_of
from submodel.report.page.types import PageGroup, PageRun

_LABELS = 4  # keys in a label; the table of differences has all


def group_runs(runs: Sequence[PageRun]) -> list[PageGroup]:
    """The groups of some runs, in their order.

    Args:
        runs: all of a page.
    """
    members: dict[tuple[object, ...], list[int]] = {}
    for place, run in enumerate(runs):
        members.setdefault((run.title, way_of(run.settings)), []).append(place)
    firsts = [runs[places[0]] for places in members.values()]
    settings = [{k: shorten(v) for k, v in way_of(run.settings)} for run in firsts]
    keys = distinctive_keys(settings)
    labels = _labels(firsts, settings, keys)
    return [
        PageGroup(label, {k: own[k] for k in keys if k in own}, places)
        for label, own, places in zip(labels, settings, members.values(), strict=True)
    ]


def distinctive_keys(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys that tell configurations apart.

    Keys that only follow from another component of their section, as ``scheme.order`` from a scheme
    that has one, tell nothing.

    Args:
        settings: of every group.

    >>> rolling, static = {"scheme.name": "rolling", "scheme.order": "x"}, {"scheme.name": "static"}
    >>> distinctive_keys([rolling, static])
    ['scheme.name']
    >>> distinctive_keys([rolling, {**rolling, "scheme.order": "y"}])
    ['scheme.order']
    """
    keys = dict.fromkeys(key for one in settings for key in one)
    return [key for key in keys if _tells_apart(key, settings)]


def _tells_apart(key: str, settings: Sequence[Mapping[str, str]]) -> bool:
    set_values = {one[key] for one in settings if key in one}
    if len(set_values) > 1:
        return True
    if all(key in one for one in settings):
        return False
    namer = f"{key.partition('.')[0]}.name"
    by_name: dict[str | None, set[str | None]] = {}
    for one in settings:
        by_name.setdefault(one.get(namer), set()).add(one.get(key))
    return any(len(values) > 1 for values in by_name.values())


def _labels(
    firsts: Sequence[PageRun], settings: Sequence[Mapping[str, str]], keys: Sequence[str]
) -> list[str]:
    labels = [
        run.title or _label(own, keys) or run.name
        for run, own in zip(firsts, settings, strict=True)
    ]
    return [
        label if labels.count(label) == 1 else f"{label} ({place + 1})"
        for place, label in enumerate(labels)
    ]


def _label(settings: Mapping[str, str], keys: Sequence[str]) -> str:
    """The values of what differs; of components, their names alone."""
    parts = []
    for key in keys:
        if key in settings:
            is_name = key.endswith((".name", ".rule"))
            parts.append(settings[key] if is_name else f"{key} = {settings[key]}")
    more = f", and {len(parts) - _LABELS} more" if len(parts) > _LABELS else ""
    return ", ".join(parts[:_LABELS]) + more
