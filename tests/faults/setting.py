"""Common parts of the failure tests: a tiny run, devices with faults, and the right model."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Failure, Outcome, State, Task
from submodel.config import read
from submodel.config.setup import prepare
from submodel.data import Population
from submodel.engines.serial import SerialEngine
from submodel.federation.flower.process import descendants
from submodel.model.cost import CostModel
from tests.support.devices import alone
from tests.support.processes import PATIENCE, Processes

CONFIG = """
name = "faults"
seed = 3
[model]
name = "cnn"
width = 4
[data]
examples = 150
test_examples = 50
[clients]
count = {count}
per_round = {count}
capacities = [1.0, 0.25]
[train]
rounds = {rounds}
evaluate_every = 100
evaluate_capacities = false
[engine]
name = "flower"
device = "cpu"
[devices]
least = {least}
deadline = {deadline}
quorum = {quorum}
"""
# Seconds; an honest round takes 5 to 8 on two quiet cores.
DEADLINE = 45
SOON = 20.0
# Enough for the return of a killed device, in rounds that take a second less than
# the fastest observed; such a run is stopped after its last check.
MANY = 60


def configured(
    count: int = 2, rounds: int = 3, least: int | None = None, quorum: float = 1.0
) -> str:
    """Make a run over a number of devices; all must be present unless a number is given."""
    least = count if least is None else least
    return CONFIG.format(count=count, rounds=rounds, least=least, deadline=DEADLINE, quorum=quorum)


class Saboteur:
    """A device with planned faults, see device/sitecustomize.py."""

    def __init__(self, processes: Processes, name: str, plan: str, *what: str) -> None:
        self._processes, self.name, self._what = processes, name, what
        self._folder = processes.folder / name / "faults"
        self._folder.mkdir(parents=True)
        (self._folder / "plan").write_text(plan)
        (self._folder / "hold").touch()
        self.join()

    def join(self) -> None:
        """Start the device (again)."""
        path = [str(Path(__file__).with_name("device")), os.environ.get("PYTHONPATH", "")]
        variables = {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "SUBMODEL_TEST_FAULTS": str(self._folder),
        }
        self._processes.join(self.name, *self._what, variables=variables)

    def asked(self) -> list[tuple[int, str]]:
        """Return the rounds of its requests to train, with its faults."""
        return [(int(round_), fault) for round_, _, fault in self._asked()]

    def held(self, patience: float = PATIENCE) -> int:
        """Wait until the device stops in the middle of a round, and return the round."""
        self._processes.wait(f"{self.name} in a round", lambda: "hold" in self._last(), patience)
        return int(self._last()[0])

    def app(self) -> psutil.Process:
        """Return the process of its app that stops."""
        pid = int(self._last()[1])
        (found,) = [one for one in self._processes.below(self.name) if one.pid == pid]
        assert not descendants(pid)
        return found

    def release(self) -> None:
        """Let the stopped app continue."""
        (self._folder / "hold").unlink()

    def _asked(self) -> list[list[str]]:
        file = self._folder / "asked"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [line.split() for line in lines if line.endswith("\n")]

    def _last(self) -> list[str]:
        asked = self._asked()
        return asked[-1] if asked else ["", "", ""]


def there(line: Mapping[str, Any]) -> set[int]:
    """Return the requested clients of a round, by its record."""
    requested = {*line["devices"], *line.get("missing", {}), *line["refused"]}
    return {int(client) for client in requested}


def absent(line: Mapping[str, Any]) -> dict[int, str]:
    """Return the clients without an update in a round, with the reasons."""
    return {int(c): why for c, why in {**line.get("missing", {}), **line["refused"]}.items()}


@dataclass(frozen=True, kw_only=True)
class Present(Population):
    """Clients of whom a different subset is present in every round."""

    rounds: Sequence[Collection[int]]

    def sample(self, round_: int, present: Collection[int] | None = None) -> list[int]:
        assert present is None
        return super().sample(round_, self.rounds[round_])


class Answering(SerialEngine):
    """An engine that trains in this process for the clients that answered."""

    silent: Collection[int] = ()

    def run(self, tasks: Iterable[Task]) -> Iterator[Outcome]:  # type: ignore[override]
        for task in tasks:
            if task.assignment.client in self.silent:
                yield Failure(task.assignment, "")
            else:
                yield from super().run([task])


def assert_account_is_true(processes: Processes) -> list[State]:
    """Train in this process with the recorded participants, and compare the metrics.

    Returns the models that the run must have had, from the first one on.
    """
    lines = processes.metrics()
    setup = prepare(alone(read(processes.run / "config.toml")))
    base = {name: getattr(setup.population, name) for name in Population.__dataclass_fields__}
    setup = replace(setup, population=Present(**base, rounds=[there(line) for line in lines]))
    engine, costs = Answering(setup), CostModel(setup.module, setup.clients.dataset.example)
    states = [initial_state(setup)]
    for number, line in enumerate(lines, 1):
        engine.silent = absent(line).keys()
        state, report = step(setup, states[-1], engine, costs)
        states.append(state)
        assert line["round"] == number
        assert line["clients"] == report.clients == len(there(line)) - len(absent(line))
        for name in ("bytes_down", "bytes_up", "flops"):
            assert line[name] == getattr(report, name), (number, name)
        # summed in the order of the answers
        assert line["train_loss"] == pytest.approx(report.train_loss, rel=1e-12)
        printed = [f"client {client}: {why}" for client, why in absent(line).items()]
        if printed:
            assert f"round {number} without {'; '.join(printed)}" in processes.printed("serve")
    return states


def assert_equal(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Compare bit for bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


def final(processes: Processes) -> dict[str, Tensor]:
    """Return the model of a finished run."""
    return load_file(processes.run / "model.safetensors")


def stop(processes: Processes) -> tuple[int, dict[str, Tensor]]:
    """Stop the server by Ctrl-C; return its last stored round and that round's model."""
    processes.processes["serve"].send_signal(signal.SIGINT)
    assert processes.finish("serve") == 130
    rounds = len(processes.metrics())
    assert f"stopped after round {rounds}; continue with: submodel resume" in processes.printed(
        "serve"
    )
    kept = max((processes.run / "checkpoints").glob("round-*"))
    return int(kept.name.removeprefix("round-")), load_file(kept / "model.safetensors")


def roster_entries(processes: Processes) -> dict[int, dict[str, Any]]:
    """Return the content of devices.json by client."""
    return {one["client"]: one for one in json.loads((processes.run / "devices.json").read_text())}


def assert_roster_is_true(processes: Processes) -> None:
    """Check answers and misses against the rounds; the last open round may count as well."""
    lines = processes.metrics()
    for client, entry in roster_entries(processes).items():
        asked = [line for line in lines if client in there(line)]
        missed = [line for line in asked if str(client) in line.get("missing", {})]
        counts = {"answered": len(asked) - len(missed), "missed": len(missed)}
        extra = [entry[name] - number for name, number in counts.items()]
        assert extra in ([0, 0], [1, 0], [0, 1]), (client, entry, counts)
