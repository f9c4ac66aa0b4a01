"""One model for all processes of a machine: the bytes are those of one process, and one writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from submodel.config import parse
from submodel.engines.processes import group as processes
from submodel.engines.processes.group import ProcessGroup
from submodel.prepare.setup import prepare
from submodel.runs import loop
from submodel.runs.training import Training
from tests.support.ranks import run_group
from tests.support.schemes import joined

SMALL: dict[str, Any] = {
    "model": {"name": "mlp", "width": 8},
    "data": {"examples": 240, "test_examples": 60},
    "clients": {"count": 12, "per_round": 5, "capacities": ["1/2"]},
    "train": {"rounds": 2, "evaluate_every": 2},
    "engine": {"batching": "never"},
}
CASES: dict[str, dict[str, Any]] = {
    "rolling": {"scheme": {"name": "rolling"}},
    "random": {"scheme": {"name": "random"}},
    "norms": {"model": {"name": "cnn", "width": 8}, "scheme": {"name": "static"}},
    "momentum": {"server": {"name": "momentum"}},
    "ball": {"merge": {"projection": "ball", "radius": 3.0}},
    "cells": {"scheme": {"name": "hierarchical", "cells": 2, "every": 2}},
}


def train(group: ProcessGroup, machines: str) -> dict[str, tuple[dict[str, bytes], bool]]:
    """Every case; machines: one for each rank."""
    loop._LARGE = 0
    if len(set(machines)) > 1:
        vars(processes)["machine_name"] = lambda: machines[group.rank]
    results = {}
    for name, case in CASES.items():
        config = parse(joined(SMALL, case))
        state, _ = loop.run_rounds(Training(config, prepare(config)), group=group)
        values = {n: t.numpy() for n, t in state.tensors.items()}
        addresses = group.tell({"inodes": sorted(_mapped())})
        everyone = [set(note["inodes"]) for note in addresses]
        in_one_memory = bool(set.intersection(*everyone))
        assert all(v.flags.writeable for v in values.values()) or group.rank
        results[name] = {n: v.tobytes() for n, v in values.items()}, in_one_memory
    return results


def _mapped() -> set[str]:
    """The files of shared memory that this process has in its own."""
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    return {line.split()[4] for line in lines if "memfd:submodel " in line}


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has such memory")
@pytest.mark.parametrize("machines", ["aa", "aab"])
def test_the_bytes_are_those_of_one_process(machines: str) -> None:
    results = run_group(train, machines, len(machines))
    for name, case in CASES.items():
        config = parse(joined(SMALL, case))
        state, _ = loop.run_rounds(Training(config, prepare(config)))
        tensors, in_one_memory = results[name]
        assert tensors == {n: np.asarray(t).tobytes() for n, t in state.tensors.items()}, name
        assert in_one_memory == (machines == "aa"), name
