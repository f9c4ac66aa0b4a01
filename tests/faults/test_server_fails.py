"""A server that dies, partly or wholly, in the middle of a round loses only that round."""

from __future__ import annotations

import signal

import pytest

from submodel.config import read
from submodel.config.setup import prepare
from submodel.federation.flower.process import is_running
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from tests.faults.setting import SOON, Saboteur, assert_equal, configured, final
from tests.support.devices import alone
from tests.support.processes import Processes

pytestmark = pytest.mark.faults
ROUNDS = 3


def in_the_second_round(processes: Processes) -> Saboteur:
    """Start a run whose second round waits for the returned device."""
    processes.serve(configured(rounds=ROUNDS), ["a", "b"])
    processes.join("a", "--part", "0")
    held = Saboteur(processes, "b", "honest hold honest", "--part", "1")
    assert held.held() == 2
    processes.wait("the first round's account", lambda: len(processes.metrics()) == 1, SOON)
    return held


def assert_as_if_undisturbed(processes: Processes, held: Saboteur) -> None:
    """Check that the run ended with the undisturbed model, and trained no more."""
    config = alone(read(processes.run / "config.toml"))
    expected, _ = run_rounds(Training(config, prepare(config)))
    assert_equal(final(processes), expected.tensors)
    lines = processes.metrics()
    assert [line["round"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["devices"].keys() == {"0", "1"}
        assert not line["refused"]
        assert "missing" not in line
    assert [round_ for round_, _ in held.asked()] == [1, 2, 2, 3]


def test_kill_9_of_the_servers_app(processes: Processes) -> None:
    held = in_the_second_round(processes)
    (app,) = processes.below("serve", "flwr-serverapp")
    app.kill()
    held.release()
    assert processes.finish("serve") == 0, processes.everything()
    assert (
        processes.printed("serve").count("the server's app died after round 1: restarting it") == 1
    )
    assert "the SuperLink died" not in processes.printed("serve")
    assert_as_if_undisturbed(processes, held)


def test_kill_9_of_the_superlink(processes: Processes) -> None:
    held = in_the_second_round(processes)
    (app,) = processes.below("serve", "flwr-serverapp")
    (link,) = processes.below("serve", "launcher.py")
    link.kill()
    held.release()
    assert processes.finish("serve") == 0, processes.everything()
    assert processes.printed("serve").count("the SuperLink died after round 1: restarting it") == 1
    assert not is_running(app)
    assert_as_if_undisturbed(processes, held)


def test_kill_9_of_serve(processes: Processes) -> None:
    held = in_the_second_round(processes)
    below = processes.below("serve")
    assert below
    processes.processes["serve"].kill()
    processes.finish("serve", SOON)
    processes.wait("the end of all it started", lambda: not any(map(is_running, below)), SOON)
    held.release()
    processes.start("resume", "resume", str(processes.run))
    assert processes.finish("resume") == 0, processes.everything()
    assert "test accuracy" in processes.printed("resume")
    assert_as_if_undisturbed(processes, held)


def test_ctrl_c_of_serve(processes: Processes) -> None:
    held = in_the_second_round(processes)
    below = processes.below("serve")
    processes.processes["serve"].send_signal(signal.SIGINT)
    assert processes.finish("serve", SOON) == 130
    assert not any(map(is_running, below))
    resume = f"continue with: submodel resume {processes.run}"
    assert f"stopped after round 1; {resume}" in processes.printed("serve")
    assert "Traceback" not in processes.printed("serve")
    held.release()
    processes.start("resume", "resume", str(processes.run))
    assert processes.finish("resume") == 0, processes.everything()
    assert_as_if_undisturbed(processes, held)
