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
from tests.support.processes import House

pytestmark = pytest.mark.faults
ROUNDS = 3


def in_the_second_round(house: House) -> Saboteur:
    """Start a run whose second round waits for the returned device."""
    house.serve(configured(rounds=ROUNDS), ["a", "b"])
    house.join("a", "--part", "0")
    held = Saboteur(house, "b", "honest hold honest", "--part", "1")
    assert held.held() == 2
    house.wait("the first round's account", lambda: len(house.metrics()) == 1, SOON)
    return held


def assert_as_if_undisturbed(house: House, held: Saboteur) -> None:
    """Check that the run ended with the undisturbed model, and trained no more."""
    config = alone(read(house.run / "config.toml"))
    expected, _ = run_rounds(Training(config, prepare(config)))
    assert_equal(final(house), expected.tensors)
    lines = house.metrics()
    assert [line["round"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["devices"].keys() == {"0", "1"}
        assert not line["refused"]
        assert "missing" not in line
    assert [round_ for round_, _ in held.asked()] == [1, 2, 2, 3]


def test_kill_9_of_the_servers_app(house: House) -> None:
    held = in_the_second_round(house)
    (app,) = house.below("serve", "flwr-serverapp")
    app.kill()
    held.release()
    assert house.finish("serve") == 0, house.everything()
    assert house.said("serve").count("the server's app died after round 1: restarting it") == 1
    assert "the SuperLink died" not in house.said("serve")
    assert_as_if_undisturbed(house, held)


def test_kill_9_of_the_superlink(house: House) -> None:
    held = in_the_second_round(house)
    (app,) = house.below("serve", "flwr-serverapp")
    (link,) = house.below("serve", "launcher.py")
    link.kill()
    held.release()
    assert house.finish("serve") == 0, house.everything()
    assert house.said("serve").count("the SuperLink died after round 1: restarting it") == 1
    assert not is_running(app)
    assert_as_if_undisturbed(house, held)


def test_kill_9_of_serve(house: House) -> None:
    held = in_the_second_round(house)
    below = house.below("serve")
    assert below
    house.processes["serve"].kill()
    house.finish("serve", SOON)
    house.wait("the end of all it started", lambda: not any(map(is_running, below)), SOON)
    held.release()
    house.start("resume", "resume", str(house.run))
    assert house.finish("resume") == 0, house.everything()
    assert "test accuracy" in house.said("resume")
    assert_as_if_undisturbed(house, held)


def test_ctrl_c_of_serve(house: House) -> None:
    held = in_the_second_round(house)
    below = house.below("serve")
    house.processes["serve"].send_signal(signal.SIGINT)
    assert house.finish("serve", SOON) == 130
    assert not any(map(is_running, below))
    resume = f"continue with: submodel resume {house.run}"
    assert f"stopped after round 1; {resume}" in house.said("serve")
    assert "Traceback" not in house.said("serve")
    held.release()
    house.start("resume", "resume", str(house.run))
    assert house.finish("resume") == 0, house.everything()
    assert_as_if_undisturbed(house, held)
