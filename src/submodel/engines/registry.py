"""Engines by name: ours, and where their code is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.plugins import Kind, Offer

if TYPE_CHECKING:
    from submodel.algorithm.execution import Engine

ENGINES: Kind[Engine] = Kind(
    noun="engine",
    key="engine.name",
    group="submodel.engines",
    wants="an engine: an object with bundles(assignments) and run(tasks)",
    members=("bundles", "run"),
    with_context=True,
    offers={
        "auto": Offer(
            "submodel.engines.select:Processes", "several processes for more than a minute of work"
        ),
        "local": Offer("submodel.engines.select:Local", "this process"),
        "torchrun": Offer("submodel.engines.select:Processes", "several, here or on many machines"),
        "flower": Offer("submodel.engines.select:Devices", "real devices, by submodel serve"),
    },
)
