"""Ways and circumstances of experiments in one form, whatever experiment they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from submodel.experiments import VariantRecord
from submodel_lab.advice.evidence import Circumstances, TriedWay
from submodel_lab.advice.fleet import fleet_shares

_DEFAULTS = ("scheme.order=shuffled", "scheme.sampling=bernoulli", "merge.rule=selective")
_OF_THE_FLEET = ("clients.capacities=", "clients.capacity_mode=")
"""What devices are, not what is chosen for them."""


def settings_of(sections: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Sections as ``key=value``, without what a fleet decides.

    Args:
        sections: of a configuration.

    >>> settings_of({"scheme": {"name": "rolling"}, "clients": {"capacities": [1]}})
    ['scheme.name=rolling']
    """
    texts = [f"{name}.{key}={value}" for name, s in sections.items() for key, value in s.items()]
    return [text for text in texts if not text.startswith(_OF_THE_FLEET)]


def way_key(settings: Iterable[str]) -> str:
    """One name for ways that set the same, however they are spelt.

    Args:
        settings: as ``key=value``.

    >>> way_key(["scheme.name=dropout"]), way_key(["scheme.name=rolling", "merge.rule=fill_in"])
    ('random:sampling=fixed', 'rolling:merge.rule=fill_in')
    """
    names = [text.partition("=")[2] for text in settings if text.startswith("scheme.name=")]
    others = [
        text.removeprefix("scheme.")
        for text in settings
        if not text.startswith("scheme.name=") and text not in _DEFAULTS
    ]
    if names == ["dropout"]:
        names, others = ["random"], ["sampling=fixed", *others]
    return ":".join([*names, *sorted(others)])


def tried_way(title: str, settings: Sequence[str], reference: str = "") -> TriedWay:
    """A way, and why a fleet would not run it.

    Args:
        title: in tables.
        settings: as ``key=value``, all of them.
        reference: why not, where the settings do not say.
    """
    if not reference:
        if any(text.startswith("clients.capacities=") for text in settings):
            reference = "it has capacities of its own"
        elif "scheme.name=full" in settings:
            reference = "every device holds the whole model"
        elif "scheme.granularity=coordinate" in settings:
            reference = "its masks are as large as the whole model"
    return TriedWay(title, list(settings), reference)


def circumstances_of(
    title: str,
    config: Mapping[str, Any],
    records: Sequence[VariantRecord],
    budget: str,
    is_converged: bool = False,
) -> Circumstances:
    """Where some runs were made.

    Args:
        title: in tables.
        config: what they share, as plain values.
        records: the runs.
        budget: what they had the same amount of.
        is_converged: whether they went on to the end.
    """
    clients, data = config["clients"], config["data"]
    rounds = [int(r) for record in records for r in record.final("round").values()]
    labels = data.get("labels_per_client") if data.get("partition") == "labels" else None
    return Circumstances(
        title,
        data["name"],
        config["model"]["name"],
        labels,
        fleet_shares(clients["capacities"], clients.get("proportions")),
        (min(rounds), max(rounds)),
        is_converged,
        budget,
    )
