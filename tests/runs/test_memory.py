"""Memory of a large model: one state, the clients' parts of it, and little more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from submodel.algorithm.rounds import initial_state, step
from submodel.core.errors import SubmodelError
from submodel.engines.serial import SerialEngine
from submodel.model.build import can_release, release, tensors_of
from submodel.model.cost import CostModel
from tests.support.common import tiny_setup

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="asks Linux for the peak")
def test_bytes_per_parameter_are_few(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.runs.big_run", str(tmp_path)]
    # 22 M parameters; workspaces of libraries have a larger share here than in a larger model
    most = {"rolling": 10, "random": 14}
    result = subprocess.run([*command, *most], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    for scheme, (parameters, peak) in json.loads(result.stdout.splitlines()[-1]).items():
        assert peak <= most[scheme] * parameters, scheme


def test_a_module_gives_its_values_away_once() -> None:
    setup = tiny_setup("cnn")
    expected = {n: t.clone() for n, t in tensors_of(setup.module).items()}
    assert can_release(setup.module)
    state = initial_state(setup, take=True)
    assert all(torch.equal(expected[n], t) for n, t in state.tensors.items())
    assert all(p.is_meta for p in setup.module.parameters())
    with pytest.raises(SubmodelError, match="values"):
        initial_state(setup)


def test_what_is_tied_stays_tied() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    net[1].weight = net[0].weight
    assert list(release(net)) == ["0.weight", "0.bias", "1.bias"]
    assert net[1].weight is net[0].weight


def test_engines_need_no_values() -> None:
    full, empty = tiny_setup("cnn"), tiny_setup("cnn")
    states = initial_state(full), initial_state(empty, take=True)
    results = []
    for setup, state in zip((full, empty), states, strict=True):
        costs = CostModel(setup.module, setup.clients.dataset.example)
        results.append(step(setup, state, SerialEngine(setup), costs)[0].tensors)
    assert all(torch.equal(results[0][n], t) for n, t in results[1].items())
