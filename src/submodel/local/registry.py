"""Optimisers and schedules by name: ours, and where their code is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.plugins import Kind, Offer

if TYPE_CHECKING:
    from submodel.local.optimisers import Optimiser
    from submodel.local.schedule import Schedule


OPTIMISERS: Kind[Optimiser] = Kind(
    noun="optimiser",
    key="local.optimiser",
    group="submodel.optimisers",
    wants="an optimiser, with copies, begin, step and plain",
    members=("copies", "begin", "step", "plain"),
    offers={
        "sgd": Offer("submodel.local.optimisers:Sgd", "with momentum or Nesterov's, as torch's"),
        "adam": Offer("submodel.local.optimisers:LocalAdam", "as torch's"),
        "adamw": Offer(
            "submodel.local.optimisers:LocalAdamW", "with a decay of its own, as torch's"
        ),
        "adafactor": Offer(
            "submodel.local.optimisers:Adafactor", "little memory, relative rates, as torch's"
        ),
    },
)

SCHEDULES: Kind[Schedule] = Kind(
    noun="schedule",
    key="local.schedule",
    group="submodel.schedules",
    wants="a schedule: an object with factor(round)",
    members=("factor",),
    offers={
        "constant": Offer("submodel.local.schedule:Constant"),
        "step": Offer("submodel.local.schedule:Steps"),
        "cosine": Offer("submodel.local.schedule:Cosine"),
    },
)
"""Made with the number of rounds as context."""
