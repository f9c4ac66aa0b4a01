"""Runs with recorded ends: every scheme, merge rule and granularity, on every engine.

A refused case is recorded as refused, so that new support or new refusals are detected.
"""

from __future__ import annotations

from itertools import product

from tests.golden.components import FITTED, SCORED, TOLD
from tests.support.common import RULES
from tests.support.schemes import VARIANTS, Sections, joined

GRANULARITIES = ("unit", "coordinate")
BASE: Sections = {
    "model": {"name": "cnn", "width": 4},
    "data": {"examples": 60, "test_examples": 20},
    "clients": {"count": 6, "per_round": 4, "capacities": [1, 0.5, 0.25]},
    "train": {"rounds": 2, "evaluate_every": 4, "evaluate_capacities": False},
    "engine": {"name": "local", "batching": "never", "device": "cpu"},
}
STACKED: Sections = {"engine": {"batching": "always"}}
OVER_DEVICES: Sections = {
    "engine": {"name": "flower"},
    "devices": {"least": 6, "deadline": 0.5},
}
MLP: Sections = {"model": {"name": "mlp", "width": 8}}
MODELS: dict[str, Sections] = {"selective": {}, "fill_in": MLP}  # both kinds of layers, in turn
WINDOWS = {"unit": 16, "coordinate": 2}  # they divide the axes evenly
RESNET: Sections = {"model": {"name": "preresnet18", "width": 2}}
OTHERS: dict[str, Sections] = {
    "mlp": MLP,
    "preresnet18": RESNET,
    "scaler": joined(RESNET, {"model": {"scaler": True}}),
    "layer by layer": joined(
        RESNET,
        {"scheme": {"name": "random", "sampling": "fixed", "alignment": "independent"}},
    ),
    "factorised": {"model": {"factorised": True}},
    "adapters by products": joined(
        MLP, {"model": {"adapters": "lora", "adapter_rank": 4}, "merge": {"rule": "products"}}
    ),
    "adapters": joined(MLP, {"model": {"adapters": "lora", "adapter_rank": 4}}),
    **{f"server {name}": {"server": {"name": name}} for name in ("momentum", "adam", "yogi")},
    **{name: {"clients": {"sampling": name}} for name in ("cyclic", "shuffled-cyclic")},
    **{f"absent labels {a}": {"local": {"absent_labels": a}} for a in ("keep", "zero")},
    **{
        f"output step of {name}, {granularity}": {
            "scheme": {
                "name": name,
                "granularity": granularity,
                **({"windows": WINDOWS[granularity]} if name == "rolling" else {}),
            },
            "train": {"output_step": 10.0},
        }
        for name, granularity in product(("static", "rolling", "random"), GRANULARITIES)
    },
    "iid": {"data": {"partition": "iid"}},
    "dirichlet": {"data": {"partition": "dirichlet"}, "merge": {"weights": "examples"}},
    "dynamic capacities": {"clients": {"capacity_mode": "dynamic"}},
    "decay and clip": {"local": {"weight_decay": 0.01, "clip": 1.0}},
    "cosine": {"local": {"schedule": "cosine"}},
    "bfloat16": {"local": {"precision": "bfloat16"}},
    "ball": {"merge": {"projection": "ball", "radius": 3.0}},
}  # fmt: skip


def _schemes() -> dict[str, Sections]:
    found = {}
    for scheme, rule, granularity in product(VARIANTS, RULES, GRANULARITIES):
        choice: Sections = {"scheme": {"granularity": granularity}, "merge": {"rule": rule}}
        found[f"{scheme}, {rule}, {granularity}"] = joined(
            BASE, MODELS[rule], VARIANTS[scheme], choice
        )
    return found


SERIAL = _schemes() | {name: joined(BASE, sections) for name, sections in OTHERS.items()}
BATCHED = {
    **{name: joined(config, STACKED) for name, config in _schemes().items()},
    **{name: joined(BASE, OTHERS[name], STACKED) for name in ("mlp", "preresnet18", "scaler")},
}
ON_DEVICES = {**BASE, "engine": {"device": "cpu"}}  # which train one task after another
DEVICES = {name: joined(ON_DEVICES, MLP, VARIANTS[name], OVER_DEVICES) for name in VARIANTS}
RESUMED = {
    name: joined(BASE, sections, {"train": {"rounds": 4}})
    for name, sections in {
        **{name: VARIANTS[name] for name in ("rolling", "hierarchical", "pruned")},
        "server adam": OTHERS["server adam"],
    }.items()
}
PROCESSES = {
    name: joined(BASE, MLP, sections)
    for name, sections in {**VARIANTS, "server adam": OTHERS["server adam"]}.items()
}
CASES = {
    f"{engine}: {name}": (engine, config)
    for engine, cases in {
        "serial": SERIAL,
        "batched": BATCHED,
        "devices": DEVICES,
        "resumed": RESUMED,
        "two processes": PROCESSES,
        "scored": SCORED,
        "told": TOLD,
        **{f"fitted by {cut}": cases for cut, cases in FITTED.items()},
    }.items()
    for name, config in cases.items()
}
"""Engine and configuration of each case, by name."""


def _group(name: str) -> str:
    """Group cases that share a process, as the local engines prepare a configuration once."""
    engine = CASES[name][0]
    if engine in ("serial", "batched"):
        return next((f"local, {rule}" for rule in RULES if f", {rule}, " in name), "local, others")
    return "scored" if engine == "scored" else "other ways"


GROUPS: dict[str, list[str]] = {}
"""Cases of one process, a few seconds each."""
for _name in CASES:
    GROUPS.setdefault(_group(_name), []).append(_name)
USUAL = [
    *(f"{engine}: rolling, selective, unit" for engine in ("serial", "batched")),
    *(f"{engine}: preresnet18" for engine in ("serial", "batched")),
    *(f"{engine}: server adam" for engine in ("resumed", "two processes")),
    *("devices: rolling", "serial: adapters", "scored: bytes", "scored: bytes, stacked"),
    *("scored: regression", "scored: finish", "fitted by importance: mlp"),
]
"""Cases that also run with the usual kernels of the machine: every engine and model."""
NATIVE = [
    *("batched: rolling, selective, unit", "batched: random, selective, unit"),
    *("scored: classes, stacked", "scored: bytes, stacked", "scored: gpt, static"),
]
"""Cases that native kernels can compute as well, with about the same numbers."""
