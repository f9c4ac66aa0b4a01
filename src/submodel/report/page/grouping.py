"""Runs that differ in nothing but their seeds are a group; what tells groups apart names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from submodel.report.page.types import PageGroup, PageRun

_NOT_COMPARED = ("seed", "name")
_LABELS = 4  # keys in a label; the table of differences has all


def group_runs(runs: Sequence[PageRun]) -> list[PageGroup]:
    """The groups of some runs, in their order.

    Args:
        runs: all of a page.
    """
    members: dict[tuple[object, ...], list[int]] = {}
    for place, run in enumerate(runs):
        compared_settings = {k: v for k, v in run.settings.items() if k not in _NOT_COMPARED}
        members.setdefault((run.title, *sorted(compared_settings.items())), []).append(place)
    firsts = [runs[places[0]] for places in members.values()]
    keys = distinctive_keys([run.settings for run in firsts])
    labels = _labels(firsts, keys)
    return [
        PageGroup(label, {k: first.settings[k] for k in keys if k in first.settings}, places)
        for label, first, places in zip(labels, firsts, members.values(), strict=True)
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
    keys = dict.fromkeys(key for one in settings for key in one if key not in _NOT_COMPARED)
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


def _labels(firsts: Sequence[PageRun], keys: Sequence[str]) -> list[str]:
    labels = [run.title or _label(run.settings, keys) or run.name for run in firsts]
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
