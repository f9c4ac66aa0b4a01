"""Run cases in this process and return their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import chdir
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Setup
from submodel.config import Config, parse
from submodel.config.setup import prepare
from submodel.core.errors import SubmodelError
from submodel.data import Dataset, digits, limit
from submodel.engines.processes.group import ProcessGroup
from submodel.federation.device import DeviceOptions
from submodel.federation.own_data import OwnData
from submodel.federation.server import over_devices
from submodel.model.cost import CostModel
from submodel.runs.callbacks import RoundCallback
from submodel.runs.checkpoint import model_sha256
from submodel.runs.loop import Interruption, RunFolder, run_rounds
from submodel.runs.open import open as open_run
from submodel.runs.training import Training
from tests.golden.cases import CASES
from tests.golden.components import FITTED, write_files
from tests.support.devices import LocalChannel
from tests.support.ranks import run_group
from tests.support.schemes import Sections, joined

End = dict[str, Any]
FILE = Path(__file__).with_name("golden.json")
REFUSED: End = {"refused": True}


def end(tensors: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> End:
    """Return the hashes of a model and of the run's memory, and sums of the model in float64."""
    flat = torch.cat([tensors[name].double().flatten() for name in sorted(tensors)])
    places = torch.arange(len(flat), dtype=torch.float64)
    return {
        "model": model_sha256(tensors)[:16],
        **({"memory": model_sha256(memory)[:16]} if memory else {}),
        "sums": [float(f"{x:.9g}") for x in (flat.abs().sum(), flat.norm(), flat @ places.cos())],
    }


def take(names: Iterable[str], begin: Callable[[], None] | None = None) -> dict[str, End]:
    """The ends of these cases.

    Args:
        names: of the cases.
        begin: done first by each process that a case starts.
    """
    names = list(names)
    together = {n: CASES[n][1] for n in names if CASES[n][0] == "two processes"}
    with TemporaryDirectory() as folder, chdir(folder):
        write_files(Path(folder))
        ends = {name: _take(name) for name in names if name not in together}
    return ends | (run_group(_of_a_group, (together, begin), 2) if together else {})


def _take(name: str) -> End:
    try:
        return take_one(name)
    except SubmodelError:
        return REFUSED


def take_one(name: str, *sections: Sections) -> End:
    """Return the end of a case of this process, with additional sections."""
    engine, values = CASES[name]
    return _ENGINES[engine](parse(joined(values, *sections)))


def _here(config: Config) -> End:
    plain = config.engine.model_copy(update={"batching": "never", "kernels": "auto"})
    key = config.model_copy(update={"engine": plain}).model_dump_json()
    state, _ = run_rounds(Training(config, _setup(key)))
    return end(state.tensors, state.memory)


@cache
def _setup(config: str) -> Setup:
    """Make the setup for both local engines."""
    config_ = Config.model_validate_json(config)
    return prepare(config_, data=_data(config_))


def _over_devices(config: Config) -> End:
    nodes = {
        2**63 + 17 * part: DeviceOptions(OwnData(part=part))
        for part in range(config.clients.client_count)
    }
    here = Training(config, prepare(config, data=_data(config)))
    training = over_devices(here, LocalChannel(nodes))
    setup, engine = training.setup, training.engine
    assert engine is not None
    costs = CostModel(setup.module, setup.clients.dataset.example)
    state = initial_state(setup)
    for _ in range(config.train.rounds):
        state, report = step(setup, state, engine, costs)
        assert not report.refusals
    return end(state.tensors, state.memory)


def _resumed(config: Config) -> End:
    """Stop after the second round and resume."""

    def stop(line: Mapping[str, Any]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "run")
        folder.create(config)
        try:
            run_rounds(
                Training(config, prepare(config, data=_data(config))), folder, [RoundCallback(stop)]
            )
        except Interruption:
            setup = prepare(config, data=_data(config))
            state, _ = run_rounds(Training(config, setup), folder, resume=True)
            return end(state.tensors, state.memory)
    raise AssertionError("it was not stopped")


def _scored(config: Config) -> End:
    """Add the deterministic entries of the last line."""
    state, lines = run_rounds(Training(config, prepare(config)))
    return {
        **end(state.tensors, {**state.memory, **state.client_slots}),
        "line": _lasting(lines[-1]),
    }


def _read_back(config: Config) -> End:
    """Add the deterministic entries of every line, read from the run's folder."""
    with TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "run")
        folder.create(config)
        state, _ = run_rounds(Training(config, prepare(config)), folder)
        lines = [_lasting(line) for line in folder.metrics()]
        return {**end(state.tensors, state.memory), "lines": lines}


def _fitted(cut: str, config: Config) -> End:
    """Add the sub-model of half the capacity and its fit."""
    with TemporaryDirectory() as path:
        folder = RunFolder(Path(path) / "run")
        folder.create(config)
        run_rounds(Training(config, prepare(config)), folder)
        run = open_run(folder.path)
        (result,) = run.fit(0.5, rounds=2, cut=cut, progress=False)
        fitted = run.fitted_model(0.5)
        assert fitted is not None
        return {**end(fitted.tensors, {}), "line": _lasting(result)}


def _lasting(line: Mapping[str, Any]) -> dict[str, Any]:
    """Remove times from a line."""
    return {key: value for key, value in line.items() if key != "seconds"}


_ENGINES: dict[str, Callable[[Config], End]] = {
    "serial": _here,
    "batched": _here,
    "devices": _over_devices,
    "resumed": _resumed,
    "scored": _scored,
    "told": _read_back,
    **{f"fitted by {cut}": partial(_fitted, cut) for cut in FITTED},
}


def _of_a_group(
    group: ProcessGroup, work: tuple[Mapping[str, Sections], Callable[[], None] | None]
) -> dict[str, End]:
    cases, begin = work
    if begin is not None:
        begin()
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
    """Load the data of a configuration, once for all cases."""
    return limit(_all_data(), config.data.examples, config.data.test_examples)
