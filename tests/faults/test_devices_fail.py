"""Devices that die, hang, come late or send false messages: the model of the others, and the
absent.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from safetensors.torch import save_file

from submodel.config import read
from submodel.config.setup import prepare
from submodel.federation.flower.process import is_running
from tests.faults.setting import (
    DEADLINE,
    MANY,
    SOON,
    Saboteur,
    absent,
    assert_account_is_true,
    assert_equal,
    assert_roster_is_true,
    configured,
    roster_entries,
    stop,
    there,
)
from tests.support.devices import alone
from tests.support.processes import PATIENCE, Processes

pytestmark = pytest.mark.faults
LATE = f"no answer in {DEADLINE} s"


def with_client(processes: Processes, client: int) -> list[dict[str, Any]]:
    """Return the rounds that requested a client."""
    return [line for line in processes.metrics() if client in there(line)]


def asked_after(processes: Processes, client: int, round_: int) -> bool:
    """Return whether a later round requested the client."""
    return any(line["round"] > round_ for line in with_client(processes, client))


def answered_after(processes: Processes, client: int, round_: int) -> bool:
    """Return whether a later round merged the client's update."""
    later = with_client(processes, client)
    return any(line["round"] > round_ and client not in absent(line) for line in later)


def test_a_device_joins_late_is_killed_and_comes_back_as_the_same_client(
    processes: Processes,
) -> None:
    """Its data is its own, so its key identifies it."""
    # two answers of three close a round, so dead devices are not awaited
    processes.serve(configured(count=3, rounds=MANY, least=2, quorum=0.6), ["a", "b", "late"])
    for part, name in enumerate("ab"):
        processes.join(name, "--part", str(part))
    processes.wait("a round of two", lambda: len(processes.metrics()) >= 1)
    setup = prepare(alone(read(processes.run / "config.toml")))
    own = setup.clients.examples(2)
    save_file({"x": own.x.contiguous(), "y": own.y}, processes.folder / "own.safetensors")
    late = Saboteur(
        processes, "late", "hold honest", "--data", str(processes.folder / "own.safetensors"),
        "--capacity", str(setup.population.capacity(2, 0)),
    )  # fmt: skip

    killed_in = late.held()
    node = roster_entries(processes)[2]["node"]
    dead = processes.kill("late")
    assert len(dead) >= 3  # SuperNode, SuperExec, ClientApp
    late.release()
    late.join()  # at once, while Flower still considers it online
    # Flower takes two minutes to admit it. Then it is one of three devices; the first two close a
    # round, and the last one identifies itself before its next request, which may take some rounds.
    processes.wait("its return", lambda: asked_after(processes, 2, killed_in))
    processes.wait("its next answer", lambda: answered_after(processes, 2, killed_in))
    kept, model = stop(processes)

    assert "refused this device's key" in processes.printed("late")
    lines = processes.metrics()
    for line in lines[: killed_in - 1]:
        assert (there(line), absent(line)) == ({0, 1}, {})
    assert killed_in > 1
    lost = absent(lines[killed_in - 1])
    assert lost.keys() == {2}
    assert re.fullmatch(r"no answer in \d+ s, when enough had answered", lost[2])
    back = next(line["round"] for line in lines[killed_in:] if 2 in there(line))
    assert back > killed_in + 1
    for line in lines[killed_in : back - 1]:
        assert (there(line), absent(line)) == ({0, 1}, {})
    assert [round_ for round_, _ in late.asked()][:2] == [killed_in, back]
    assert_equal(model, assert_account_is_true(processes)[kept].tensors)
    assert_roster_is_true(processes)
    assert roster_entries(processes).keys() == {0, 1, 2}
    assert roster_entries(processes)[2]["node"] == node


def test_an_app_that_is_killed_and_one_that_hangs_are_named_and_come_back(
    processes: Processes,
) -> None:
    processes.serve(configured(count=3, rounds=MANY, least=1), ["a", "killed", "stopped"])
    honest = Saboteur(processes, "a", "hold honest", "--part", "0")
    honest.held()  # the first round is open until both are there, so that the second has both
    killed = Saboteur(processes, "killed", "hold honest", "--part", "1")
    stopped = Saboteur(processes, "stopped", "hold honest", "--part", "2")
    for name in ("killed", "stopped"):

        def has_joined(name: str = name) -> bool:
            return "joined" in processes.printed(name)

        processes.wait(f"{name} to join", has_joined, DEADLINE)
    honest.release()
    first = {device.held() for device in (killed, stopped)}
    frozen = stopped.app()
    killed.app().kill()
    frozen.suspend()
    killed.release()
    stopped.release()
    round_ = max(first)
    processes.wait(
        "the round's deadline", lambda: len(processes.metrics()) >= round_, DEADLINE + SOON
    )
    processes.wait("a round without them", lambda: len(processes.metrics()) > round_)
    asleep = len(processes.metrics())
    frozen.resume()  # now it trains for a closed round
    processes.wait("killed again", lambda: answered_after(processes, 1, round_))
    processes.wait("stopped again", lambda: answered_after(processes, 2, round_))
    processes.wait("the end of the app that hung", lambda: not is_running(frozen), SOON)
    kept, model = stop(processes)

    assert first == {round_}
    lines = processes.metrics()
    assert absent(lines[round_ - 1]) == dict.fromkeys((1, 2), LATE)
    for line in lines[round_:asleep]:
        assert there(line) == {0}
    for line in lines[round_:]:
        assert not absent(line)
    for client, device in enumerate((killed, stopped), 1):
        asked = [round_ for round_, _ in device.asked() if round_ <= len(lines)]
        assert asked == [line["round"] for line in with_client(processes, client)]
    assert_equal(model, assert_account_is_true(processes)[kept].tensors)
    assert_roster_is_true(processes)


# fault of a device, and the expected reason
LIES = {
    "honest": "",
    "nan": "0.weight holds a value that is not finite",
    "shape": "its answer: 0.weight has shape (1, 2, 3), which does not fit the cut: ",
    "old": "its answer: it answers for round ",
    "garbage": "its answer: it cannot be read (its head is cut short)",
    "empty": "its answer: it cannot be read (its head is cut short)",
    "large": "its answer: it has 4,0",
    "raise": "its app failed (<class 'RuntimeError'>:<'this app is broken'>)",
    "hold": LATE,
}


def test_lies_are_refused_and_who_hangs_gets_no_work(processes: Processes) -> None:
    processes.serve(configured(rounds=MANY, least=1), ["a", "liar"])
    processes.join("a", "--part", "0")
    liar = Saboteur(processes, "liar", " ".join([*LIES, "honest"]), "--part", "1")
    hung = liar.held(2 * PATIENCE)  # nine rounds
    processes.wait(
        "the round's deadline", lambda: len(processes.metrics()) >= hung, DEADLINE + SOON
    )
    processes.wait("two rounds without it", lambda: len(processes.metrics()) >= hung + 2)
    awake = len(processes.metrics())
    liar.release()
    processes.wait("its next answer", lambda: answered_after(processes, 1, hung))
    kept, model = stop(processes)

    lines = processes.metrics()
    counts = {
        fault: absent(lines[round_ - 1]).get(1, "") for round_, fault in liar.asked()[: len(LIES)]
    }
    assert list(counts) == list(LIES)
    for fault, start in LIES.items():
        assert counts[fault].startswith(start), fault
        assert bool(counts[fault]) == bool(start), fault
    (nan,) = [line for line in lines if line["refused"]]
    assert nan["round"] == liar.asked()[1][0]
    for line in lines[hung:awake]:
        assert there(line) == {0}
    assert_equal(model, assert_account_is_true(processes)[kept].tensors)
    assert_roster_is_true(processes)


def test_an_answer_without_an_end_does_not_come_in(processes: Processes) -> None:
    """Honest answers of several chunks pass; the SuperLink cuts 100 MB for a message of 13."""
    config = configured(rounds=MANY, least=2).replace("width = 4", "width = 256")
    processes.serve(config.replace(f"deadline = {DEADLINE}", "deadline = 90"), ["a", "liar"])
    processes.join("a", "--part", "0", "--capacity", "1")
    plan = "honest endless equal honest"
    liar = Saboteur(processes, "liar", plan, "--part", "1", "--capacity", "1")
    processes.wait("its lies", lambda: len(liar.asked()) >= 4, 5 * PATIENCE)
    lied = [round_ for round_, fault in liar.asked() if fault in ("endless", "equal")]
    processes.wait("its next answer", lambda: answered_after(processes, 1, lied[-1]), 2 * PATIENCE)
    stop(processes)

    lines = processes.metrics()
    merged = [line for line in lines if 1 in there(line) and 1 not in absent(line)]
    assert min(line["devices"]["1"]["bytes_up"] for line in merged) > 10 << 20  # three chunks
    for round_ in lied:
        assert not absent(lines[round_ - 1])[1].startswith("its answer"), absent(lines[round_ - 1])
    printed = (processes.run / "superlink.log").read_text(errors="replace")
    assert "objects answer" in printed
    assert "an array of" in printed
