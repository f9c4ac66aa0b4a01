"""The registry of engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from submodel.core.registry import Entry, Registry

if TYPE_CHECKING:
    from submodel.algorithm.execution import Engine

ENGINES: Registry[Engine] = Registry(
    noun="engine",
    key="engine.name",
    group="submodel.engines",
    expected="an engine: an object with bundles(assignments) and run(tasks)",
    members=("bundles", "run"),
    with_context=True,
    entries={
        "auto": Entry(
            "submodel.engines.select:Processes", "several processes for more than a minute of work"
        ),
        "local": Entry("submodel.engines.select:Local", "this process"),
        "torchrun": Entry("submodel.engines.select:Processes", "several, here or on many machines"),
        "flower": Entry("submodel.engines.select:Devices", "real devices, by submodel serve"),
    },
)
