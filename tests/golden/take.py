"""Runs a case and says what it ended with; and on what kind of machine."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Setup
from submodel.config import Config, parse
from submodel.data import Dataset, digits, limit
from submodel.engines.processes.group import ProcessGroup
from submodel.errors import SubmodelError
from submodel.federation.device import Means
from submodel.federation.own_data import OwnData
from submodel.federation.server import over_devices
from submodel.model.cost import CostModel
from submodel.prepare.setup import prepare
from submodel.runs.callbacks import Tell
from submodel.runs.checkpoint import model_sha256
from submodel.runs.loop import Interruption, RunFolder, run_rounds
from submodel.runs.training import Training
from tests.golden.cases import CASES
from tests.support.devices import Neighbours
from tests.support.ranks import run_group
from tests.support.schemes import Sections

End = dict[str, Any]
FILE = Path(__file__).with_name("golden.json")
REFUSED: End = {"refused": True}


def machine() -> dict[str, str]:
    """What the last bits of a float32 sum depend on."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    wanted = ("vendor_id", "cpu family", "model", "model name")
    return {
        "torch": torch.__version__,
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "processor": " ".join(facts[key] for key in wanted if key in facts) or platform.machine(),
    }


def end(tensors: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> End:
    """The hashes of a model and of what its run remembers, and sums of the model in float64."""
    flat = torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])
    places = torch.arange(len(flat), dtype=torch.float64)
    return {
        "model_sha256": model_sha256(tensors),
        **({"memory_sha256": model_sha256(memory)} if memory else {}),
        "sums": [float(flat.abs().sum()), float(flat.norm()), float(flat @ places.cos())],
    }


def take(names: Iterable[str]) -> dict[str, End]:
    """The ends of these cases."""
    ends: dict[str, End] = {}
    names = list(names)
    together = {n: CASES[n][1] for n in names if CASES[n][0] == "two processes"}
    for name in names:
        engine, values = CASES[name]
        if name not in together:
            try:
                ends[name] = _WAYS[engine](parse(values))
            except SubmodelError:
                ends[name] = REFUSED
    return ends | (_two_processes(together) if together else {})


def _here(config: Config) -> End:
    plain = config.engine.model_copy(update={"batching": "never"})
    key = config.model_copy(update={"engine": plain}).model_dump_json()
    state, _ = run_rounds(Training(config, _setup(key)))
    return end(state.tensors, state.memory)


@cache
def _setup(config: str) -> Setup:
    """What both local engines train."""
    config_ = Config.model_validate_json(config)
    return prepare(config_, data=_data(config_))


def _over_devices(config: Config) -> End:
    nodes = {
        2**63 + 17 * part: Means(OwnData(part=part)) for part in range(config.clients.client_count)
    }
    here = Training(config, prepare(config, data=_data(config)))
    training = over_devices(here, Neighbours(nodes))
    setup, engine = training.setup, training.engine
    assert engine is not None
    costs = CostModel(setup.module, setup.clients.dataset.example)
    state = initial_state(setup)
    for _ in range(config.train.rounds):
        state, report = step(setup, state, engine, costs)
        assert not report.refusals
    return end(state.tensors, state.memory)


def _resumed(config: Config) -> End:
    """Stopped after its second round, and gone on with."""

    def stop(line: Mapping[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "run")
        folder.create(config)
        try:
            run_rounds(Training(config, prepare(config, data=_data(config))), folder, [Tell(stop)])
        except Interruption:
            setup = prepare(config, data=_data(config))
            state, _ = run_rounds(Training(config, setup), folder, resume=True)
            return end(state.tensors, state.memory)
    raise AssertionError("it was not stopped")


_WAYS = {"serial": _here, "batched": _here, "devices": _over_devices, "resumed": _resumed}


def _two_processes(cases: Mapping[str, Sections]) -> dict[str, End]:
    return run_group(_of_a_group, cases, 2)


def _of_a_group(group: ProcessGroup, cases: Mapping[str, Sections]) -> dict[str, End]:
    ends = {}
    for name, values in cases.items():
        config = parse(values)
        state, _ = run_rounds(Training(config, prepare(config, data=_data(config))), group=group)
        ends[name] = end(state.tensors, state.memory)
    return ends


@cache
def _all_data() -> Dataset:
    return digits()


def _data(config: Config) -> Dataset:
    """The examples that a configuration names, read once for all cases."""
    return limit(_all_data(), config.data.examples, config.data.test_examples)
