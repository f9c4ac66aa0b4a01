"""Training over devices, all in one process: messages, answers and absent devices."""

from __future__ import annotations

import json
import math
import time
import tracemalloc
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from submodel.algorithm.dispatch import Dispatcher, cut_of
from submodel.algorithm.evaluation import evaluate_model
from submodel.algorithm.execution import Engine
from submodel.algorithm.rounds import initial_state, output_step, plan, step
from submodel.algorithm.types import Assignment, Setup, State
from submodel.config import Config, parse
from submodel.config.setup import prepare
from submodel.core.errors import CheckpointError, ConfigError, DataError, SilentRoundError
from submodel.data import Examples
from submodel.engines.serial import SerialEngine
from submodel.federation.channel import MessageKind, Reply
from submodel.federation.device import Device, DeviceOptions, Report, empty_module
from submodel.federation.facts import Facts, run_head
from submodel.federation.memory import fitting_capacity, offered_capacity
from submodel.federation.own_data import OwnData
from submodel.federation.roster import Roster, read_roster
from submodel.federation.server import DeviceClients, over_devices
from submodel.federation.wire import Message, WireError, read_update, task_message, update_limits
from submodel.model.budget import Budget
from submodel.model.cost import CostModel
from submodel.model.cut import count_values
from submodel.report.tables import cost_rows
from submodel.runs.callbacks import RoundCallback
from submodel.runs.loop import Interruption, RunFolder, run_rounds
from submodel.runs.training import Training
from submodel.schemes.scheme import output_passes
from tests.support.devices import LocalChannel, alone
from tests.support.rounds import step_of


def no_reply(*_: object) -> None:
    """The reply of a hanging device."""


def config_of(**sections: Any) -> Config:
    values: dict[str, Any] = {
        "model": {"name": "cnn", "width": 4},
        "data": {"examples": 120, "test_examples": 40},
        "clients": {"count": 4, "per_round": 3, "capacities": [1, 0.5, 0.25]},
        "train": {"rounds": 2, "evaluate_every": 2},
        "engine": {"name": "flower", "device": "cpu"},
        "devices": {"least": 4, "deadline": 0.5},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section} if isinstance(section, dict) else section
    if ":" in values["model"]["name"]:
        del values["model"]["width"]
    return parse(values)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBMODEL_DATA", str(tmp_path / "cache"))


def parts(count: int = 4) -> dict[int, DeviceOptions]:
    """Make nodes with arbitrary numbers, like Flower's, and a part of the run's data each."""
    return {2**63 + 17 * part: DeviceOptions(OwnData(part=part)) for part in range(count)}


def over(
    config: Config,
    channel: LocalChannel,
    file: Path | None = None,
    setup: Setup | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Setup, Engine]:
    training = over_devices(Training(config, setup or prepare(config)), channel, file, clock)
    assert training.engine is not None
    assert training.checkpoint_every == 1
    return training.setup, training.engine


def chosen(setup: Setup, round_: int = 0) -> list[int]:
    """Return the sampled clients of a round among the present ones."""
    return [a.client for a in plan(setup, round_, setup.clients.present(round_))]


def rounds_over(config: Config, channel: LocalChannel, rounds: int = 2) -> tuple[State, list[Any]]:
    setup, engine = over(config, channel)
    state, reports = initial_state(setup), []
    for _ in range(rounds):
        state, report = step_of(setup, state, engine)
        reports.append(report)
    return state, reports


def rounds_here(config: Config, rounds: int = 2) -> tuple[State, list[Any]]:
    setup = prepare(config)
    state, reports = initial_state(setup), []
    for _ in range(rounds):
        state, report = step_of(setup, state)
        reports.append(report)
    return state, reports


CASES: dict[str, dict[str, Any]] = {
    "rolling": {},
    "random, fill in": {"scheme": {"name": "random"}, "merge": {"rule": "fill_in"}},
    "coordinates": {"scheme": {"name": "random", "granularity": "coordinate"}},
    "importance of weights": {"scheme": {"name": "importance", "granularity": "coordinate"}},
    "importance": {"scheme": {"name": "importance"}},
    "ordered": {"scheme": {"name": "ordered", "distill": 0.5}},
    "unbiased": {
        "scheme": {"name": "unbiased", "sampling": "fixed"},
        "merge": {"rule": "fill_in"},
    },
    "hierarchical": {
        "scheme": {"name": "hierarchical", "cells": 2, "every": 2},
        "clients": {"capacities": [0.5]},
    },
    "pruned": {
        "scheme": {"name": "pruned", "granularity": "coordinate", "every": 1},
        "clients": {"capacities": [0.25]},
    },
    "factorised": {"model": {"factorised": True}},
    "adapters": {"model": {"name": "mlp", "adapters": "lora", "adapter_rank": 4}},
    "static batch norm and scaler": {"model": {"name": "preresnet18", "width": 2, "scaler": True}},
    "all labels, examples count": {
        "local": {"absent_labels": "keep"},
        "merge": {"weights": "examples"},
    },
    "server momentum": {"server": {"name": "momentum"}},
}


@pytest.mark.every(2)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_devices_train_the_same_model_as_this_process_bit_for_bit(case: str) -> None:
    config = config_of(**CASES[case])
    here, expected = rounds_here(config)
    there, found = rounds_over(config, LocalChannel(parts()))
    torch.testing.assert_close(here.tensors, there.tensors, rtol=0, atol=0)
    torch.testing.assert_close(here.memory, there.memory, rtol=0, atol=0)
    for a, b in zip(expected, found, strict=True):
        assert replace(a, seconds={}) == replace(b, seconds={})


@pytest.mark.slow
def test_the_output_step_is_the_same_too() -> None:
    config = config_of()
    here = prepare(config)
    there, engine = over(config, LocalChannel(parts()), setup=here)
    costs = CostModel(here.module, here.clients.dataset.example)
    expected = output_step(here, initial_state(here), SerialEngine(here), costs, 10.0)
    found = output_step(there, initial_state(there), engine, costs, 10.0)
    torch.testing.assert_close(expected.tensors, found.tensors, rtol=0, atol=0)


@pytest.mark.slow
def test_the_output_step_is_taken_without_those_who_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One device sends NaN and one sends nothing, once and not for every window."""
    config = config_of(clients={"per_round": 4}, devices={"least": 2, "deadline": 0.3})
    bad, silent = sorted(parts())[1:3]
    channel = LocalChannel(parts())
    there, engine = over(config, channel)
    costs = CostModel(there.module, there.clients.dataset.example)
    assert chosen(there) == [0, 1, 2, 3]
    channel.spoil |= {bad: NAN(channel, bad), silent: no_reply}
    windows = len(output_passes(there.scheme))
    assert windows > 2
    found = output_step(there, initial_state(there), engine, costs, 10.0)
    sent = [node for node, kind, _ in channel.sent if kind == "train"]
    assert (sent.count(bad), sent.count(silent)) == (windows, 1)
    assert "client 1: " in caplog.text
    assert "client 2: no answer" in caplog.text
    others = LocalChannel({n: options for n, options in parts().items() if n not in (bad, silent)})
    here, other = over(config, others)
    expected = output_step(here, initial_state(here), other, costs, 10.0)
    torch.testing.assert_close(expected.tensors, found.tensors, rtol=0, atol=0)


@pytest.mark.slow
def test_half_precision_costs_half_and_leaves_what_nobody_moved() -> None:
    exact, half = config_of(), config_of(devices={"transport": "half"})
    channel = LocalChannel(parts())
    here, full = rounds_here(exact)
    there, found = rounds_over(half, channel)
    assert [2 * r.bytes_down for r in found] == [r.bytes_down for r in full]
    assert [2 * r.bytes_up for r in found] == [r.bytes_up for r in full]
    for name, tensor in here.tensors.items():
        # weights are sent with 11 bits, changes return with 11
        assert torch.allclose(tensor, there.tensors[name], atol=4e-3), name
    start = initial_state(prepare(half))
    still = config_of(devices={"transport": "half"}, local={"lr": 1e-30, "momentum": 0.0})
    unmoved, _ = rounds_over(still, LocalChannel(parts()))
    torch.testing.assert_close(start.tensors, unmoved.tensors, rtol=0, atol=0)


def test_a_device_gets_the_bytes_of_its_cut_and_little_else() -> None:
    config = config_of(model={"width": 32}, local={"absent_labels": "keep"})
    channel = LocalChannel(parts())
    setup, engine = over(config, channel)
    state = initial_state(setup)
    _, report = step_of(setup, state, engine)
    promised = {row["capacity"]: row["bytes"] / 2 for row in cost_rows(setup)}  # submodel cost
    total = 0
    for _, kind, payload in channel.sent:
        if kind == "train":
            message = Message.from_bytes(payload)
            values = sum(t.nbytes for t in message.tensors.values())
            assert values == promised[message.head["assignment"]["capacity"]]
            assert len(payload) - values < 6000  # the configuration and the tensors' names
            total += values
    assert total == report.bytes_down


@pytest.mark.slow
def test_who_is_silent_is_named_and_gets_no_work_until_it_answers() -> None:
    config = config_of(clients={"per_round": 4}, devices={"least": 3})
    channel = LocalChannel(parts())
    asleep = 2**63 + 17
    channel.spoil[asleep] = no_reply
    setup, engine = over(config, channel)
    state, report = step_of(setup, engine=engine)
    assert report.clients == 3
    assert list(report.missing) == ["1"]
    assert report.missing["1"].startswith("no answer in")
    trained = [node for node, kind, _ in channel.sent if kind == "train"]
    # without an answer to the old task it gets no other one: a hanging device
    # does not even answer requests for its identity
    silent = channel.options.pop(asleep)
    _, report = step_of(setup, state, engine)
    assert report.clients == 3
    assert not report.missing
    assert [n for n, kind, _ in channel.sent if kind == "train"][len(trained) :].count(asleep) == 0
    channel.options[asleep] = silent
    del channel.spoil[asleep]
    state, report = step_of(setup, state, engine)
    assert report.clients == 4
    without, _ = rounds_here(config, 1)
    assert not torch.equal(without.tensors["0.weight"], state.tensors["0.weight"])


class Clock:
    """A clock that is set by the test."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def roster_over(channel: LocalChannel, clock: Clock) -> Roster:
    config = config_of()
    head_of_run = run_head(config, Facts.of(prepare(config).clients.dataset))
    return Roster(channel, head_of_run, lambda _: "", config.clients.client_count, clock=clock)


def asked(channel: LocalChannel, node: int) -> int:
    return sum(1 for to, kind, _ in channel.sent if to == node and kind == "report")


@pytest.mark.slow
def test_a_device_gets_no_work_however_long_it_hangs() -> None:
    channel, clock = LocalChannel(parts(2)), Clock()
    node = 2**63 + 17
    roster = roster_over(channel, clock)
    assert roster.wait(2) == [0, 1]
    channel.mute.add(node)
    roster.note_failure(1, "no answer in 40 s", silent=True)
    for clock.now in (1.0, 119.0, 121.0, 170.0, 190.0, 1000.0):
        assert roster.wait(1) == [0], clock.now  # and it is not awaited
    assert roster.entry(1).last_problem == "no report in 120 s"
    assert asked(channel, node) == 3  # at the start, at the miss, and a minute after its end
    channel.mute.clear()
    clock.now = 1060.0
    assert roster.wait(2) == [0, 1]


@pytest.mark.slow
def test_a_newcomer_that_does_not_answer_is_waited_for_once() -> None:
    channel, clock = LocalChannel(parts(2)), Clock()
    channel.mute.add(2**63 + 17)
    roster = roster_over(channel, clock)

    def pass_on(tickets: Collection[str]) -> list[Reply]:
        clock.now += 25.0
        return LocalChannel.replies(channel, tickets)

    channel.replies = pass_on  # type: ignore[method-assign]
    assert roster.wait(1) == [0]
    assert clock.now == 150.0
    clock.now = 300.0  # it gets another request, and the round starts without it
    assert roster.wait(1) == [0]
    assert (clock.now, asked(channel, 2**63 + 17)) == (300.0, 2)


class Forgetful(LocalChannel):
    """A channel where a device's identity is lost when the current round ends.

    This happens in Flower if a device answers in a round that lasts longer than the request.
    """

    def __init__(self, options: dict[int, DeviceOptions], clock: Clock) -> None:
        super().__init__(options)
        self.forgets, self._polls, self._clock = False, 0, clock

    def replies(self, tickets: Collection[str]) -> list[Reply]:
        if not self.forgets:
            return super().replies(tickets)
        kinds = {self.sent[int(ticket) - 1][1] for ticket in tickets}
        if kinds == {"report"}:
            lost = [Reply(ticket, b"", "the message was lost") for ticket in tickets]
            return super().replies(tickets) if 0 < self._polls < 5 else lost
        self._polls += 1
        self._clock.now += 0.5
        return [] if self._polls < 5 else super().replies(tickets)


def test_who_says_during_a_round_who_it_is_is_heard_before_that_is_over() -> None:
    config = config_of(clients={"count": 2, "per_round": 2}, devices={"least": 1, "deadline": 5})
    clock, (_, second) = Clock(), sorted(parts(2))
    channel = Forgetful(parts(2), clock)
    setup, engine = over(config, channel, clock=clock)
    assert chosen(setup) == [0, 1]
    clients = setup.clients
    assert isinstance(clients, DeviceClients)
    channel.mute.add(second)
    clients.roster.note_failure(1, "no answer in 40 s", silent=True)
    assert chosen(setup) == [0]
    task = Dispatcher(setup, initial_state(setup), setup.work).task(plan(setup, 0, {0: None})[0])
    channel.mute.clear()
    channel.forgets = True
    assert len(list(engine.run([task]))) == 1  # meanwhile, the second identifies itself
    assert chosen(setup) == [0, 1]


class Leaving(LocalChannel):
    """A node whose leaving is reported like by Flower; `present` does not see ``away``."""

    away: int | None = None

    def replies(self, tickets: Collection[str]) -> list[Reply]:
        gone = [t for t in tickets if self.sent[int(t) - 1][0] == self.away]
        found = super().replies([t for t in tickets if t not in gone])
        return [*found, *(Reply(t, b"", "the device is gone", is_gone=True) for t in gone)]


def test_a_device_that_was_away_for_less_than_a_round_is_asked_at_once() -> None:
    """It crashed and restarted before the next check of present devices."""
    channel, clock = Leaving(parts(2)), Clock()
    node = 2**63 + 17
    roster = roster_over(channel, clock)
    assert roster.wait(2) == [0, 1]
    channel.away = node
    roster.note_failure(1, "no answer in 4 s", silent=True)
    clock.now = 2.0
    roster.read_reports()
    assert not roster.entry(1).present
    channel.away = None
    assert roster.wait(1) == [0, 1]
    assert clock.now == 2.0


def test_a_device_that_takes_another_part_is_not_asked_twice() -> None:
    channel, clock = LocalChannel(parts(1)), Clock()
    roster = roster_over(channel, clock)
    assert roster.wait(1) == [0]
    channel.options[2**63] = DeviceOptions(OwnData(part=1))  # restarted before the next check
    roster.note_failure(0, "no answer in 4 s", silent=True)
    assert roster.wait(1) == [1]
    assert not roster.entry(0).present


def test_a_device_that_comes_and_goes_without_a_word_holds_up_one_round() -> None:
    channel, clock = LocalChannel(parts(2)), Clock()
    node = 2**63 + 17
    roster = roster_over(channel, clock)
    silent = channel.options.pop(node)
    assert roster.wait(1) == [0]
    channel.mute.add(node)

    def leave_soon(tickets: Collection[str]) -> list[Reply]:
        clock.now += 25.0
        if clock.now == 50.0:
            channel.options.pop(node)
        return LocalChannel.replies(channel, tickets)

    channel.replies = leave_soon  # type: ignore[method-assign]
    channel.options[node] = silent
    assert roster.wait(1) == [0]
    assert (waited := clock.now) >= 50.0
    channel.options[node] = silent
    assert roster.wait(1) == [0]
    assert clock.now == waited
    channel.mute.clear()
    assert roster.wait(2) == [0, 1]


def test_a_silent_device_is_asked_once_who_it_is_however_much_it_owed() -> None:
    channel = LocalChannel(parts(2))
    roster, node = roster_over(channel, Clock()), 2**63 + 17
    assert roster.wait(2) == [0, 1]
    channel.mute.add(node)
    for _ in range(3):  # statistics of three models
        roster.note_failure(1, "no answer in 40 s", silent=True)
    assert asked(channel, node) == 2  # at the beginning, and now


class Slow(LocalChannel):
    """One node trains for a number of polls, but identifies itself at once."""

    def __init__(self, options: dict[int, DeviceOptions], node: int, looks: float) -> None:
        super().__init__(options)
        self.node, self.looks, self._looks = node, looks, dict[str, int]()

    def replies(self, tickets: Collection[str]) -> list[Reply]:
        def is_ready(ticket: str) -> bool:
            node, kind, _ = self.sent[int(ticket) - 1]
            self._looks[ticket] = self._looks.get(ticket, 0) + 1
            return node != self.node or kind == "report" or self._looks[ticket] > self.looks

        return super().replies([ticket for ticket in tickets if is_ready(ticket)])


QUORUM: dict[str, Any] = {
    "clients": {"count": 3, "per_round": 3},
    "devices": {"least": 3, "deadline": 100, "quorum": 0.6},
}


def test_a_quorum_passes_over_the_slowest_device_at_most_twice_in_a_row() -> None:
    config, slowest = config_of(**QUORUM), max(parts(3))
    _, reports = rounds_over(config, Slow(parts(3), slowest, looks=3), rounds=7)
    assert [report.clients for report in reports] == [2, 2, 3, 2, 2, 3, 2]
    for report in reports:
        assert report.missing.keys() == ({"2"} if report.clients == 2 else set())


def test_one_that_is_waited_for_and_does_not_answer_costs_a_deadline_and_then_its_turn() -> None:
    config = config_of(**{**QUORUM, "devices": {**QUORUM["devices"], "deadline": 0.3}})
    _, reports = rounds_over(config, Slow(parts(3), max(parts(3)), looks=math.inf), rounds=5)
    is_early = ["when enough had answered" in report.missing["2"] for report in reports]
    assert is_early == [True, True, False, True, True]


def test_who_was_passed_over_is_known_to_a_resumed_run(tmp_path: Path) -> None:
    config, file = config_of(**QUORUM), tmp_path / "devices.json"
    missing = []
    for _ in range(3):
        channel = Slow(parts(3), max(parts(3)), looks=3)
        setup, engine = over(config, channel, file)
        missing.append(list(step_of(setup, engine=engine)[1].missing))
    assert missing == [["2"], ["2"], []]


def test_answers_that_are_there_at_the_deadline_count_however_long_another_took() -> None:
    """Looking for answers may take time, so a slow device only harms itself."""
    config = config_of(clients={"count": 2, "per_round": 2}, devices={"least": 2, "deadline": 9})
    clock, (liar, honest) = Clock(), sorted(parts(2))

    class Held(LocalChannel):
        def replies(self, tickets: Collection[str]) -> list[Reply]:
            kinds = {self.sent[int(t) - 1][1]: t for t in tickets}
            nodes = {self.sent[int(t) - 1][0]: t for t in tickets}
            if "train" not in kinds or liar not in nodes:
                return super().replies(tickets)
            clock.now += 10.0
            return [Reply(nodes[liar], b"", "its answer was lost")]

    channel = Held(parts(2))
    setup, engine = over(config, channel, clock=clock)
    _, report = step_of(setup, engine=engine)
    assert (report.clients, report.missing) == (1, {"0": "its answer was lost"})
    assert [node for node, kind, _ in channel.sent if kind == "train"].count(honest) == 1


@pytest.mark.slow
def test_a_round_names_the_devices_that_it_asked_and_no_others() -> None:
    """It omits those that only measured for an evaluation, and those of an abandoned try."""
    config = config_of(
        model={"name": "preresnet18", "width": 2},
        clients={"per_round": 2},
        train={"rounds": 3, "evaluate_every": 1, "evaluate_capacities": False},
        devices={"least": 1, "tries": 2},
    )
    channel, clients = LocalChannel(parts()), {node: c for c, node in enumerate(sorted(parts()))}
    setup, engine = over(config, channel)
    assert chosen(setup, 1) == [1, 3]

    def lie_once(node: int) -> Callable[[MessageKind, bytes], bytes]:
        def answer(kind: MessageKind, payload: bytes) -> bytes:
            spoiled = SHAPE(channel, node)(kind, payload)
            if kind == "train":
                del channel.spoil[node]
            if clients[node] == 3:
                del channel.options[
                    node
                ]  # it leaves, and gets no request when the round is repeated
            return spoiled if kind == "train" else channel.honest(node, kind, payload)

        return answer

    def spoil_the_second(line: dict[str, Any]) -> None:
        if line["round"] == 1:
            channel.spoil = {node: lie_once(node) for node in clients if clients[node] in (1, 3)}

    training = Training(config, setup, engine, checkpoint_every=1)
    _, history = run_rounds(training, callbacks=[RoundCallback(spoil_the_second)])
    asked: list[tuple[int, set[str]]] = []
    for node, kind, payload in channel.sent:
        if kind != "train":
            continue
        round_ = Message.from_bytes(payload).head["assignment"]["round"] + 1
        if not asked or asked[-1][0] != round_ or len(asked[-1][1]) == 2:
            asked.append((round_, set()))
        asked[-1][1].add(str(clients[node]))
    assert [round_ for round_, _ in asked] == [1, 2, 2, 3]
    for line in history:
        last = [them for round_, them in asked if round_ == line["round"]][-1]
        absent = {**line.get("missing", {}), **line["refused"]}
        assert {*line["devices"], *absent} == last
        assert line["clients"] == len(last) - len(absent)


def test_who_comes_back_is_asked_again_what_it_has_and_holds() -> None:
    channel, clock = LocalChannel(parts(2)), Clock()
    node = 2**63 + 17
    roster = roster_over(channel, clock)
    assert roster.wait(2) == [0, 1]
    del channel.options[node]
    assert roster.wait(1) == [0]
    channel.options[node] = DeviceOptions(OwnData(part=1), capacity=0.25)
    assert roster.wait(2) == [0, 1]
    assert roster.entry(1).report.capacity == 0.25


def test_a_device_that_says_it_cannot_gets_no_work() -> None:
    channel, clock = LocalChannel(parts(2)), Clock()
    node = 2**63 + 17
    roster = roster_over(channel, clock)
    assert roster.wait(2) == [0, 1]
    channel.options[node] = DeviceOptions(OwnData(Path("/nowhere/x.npz")), capacity=1.0)
    roster.note_failure(1, "its app failed", silent=True)
    assert roster.wait(1) == [0]
    assert roster.wait(1) == [0]  # also when it has been turned away
    assert "/nowhere/x.npz" in roster.entry(1).last_problem


@pytest.mark.slow
def test_a_server_that_starts_again_waits_for_the_devices_that_it_knew(tmp_path: Path) -> None:
    config, file = config_of(devices={"least": 3}), tmp_path / "devices.json"
    channel = LocalChannel(parts(3))
    chosen(over(config, channel, file)[0])
    channel = LocalChannel(parts(3))
    config = config_of(devices={"least": 1}, clients={"per_round": 4})
    setup, _ = over(config, channel, file)
    assert chosen(setup) == [0, 1, 2]
    assert [kind for _, kind, _ in channel.sent] == ["report"] * 3


def spoiled_by(edit: Callable[[dict[str, Any], dict[str, torch.Tensor]], object]) -> Any:
    """Make a node that changes its honest answer."""

    def make(channel: LocalChannel, node: int) -> Callable[[MessageKind, bytes], bytes]:
        def answer(kind: MessageKind, payload: bytes) -> bytes:
            message = Message.from_bytes(channel.honest(node, kind, payload))
            head, tensors = dict(message.head), dict(message.tensors)
            edit(head, tensors)
            return Message(head, tensors).to_bytes()

        return answer

    return make


def answers_with(answer: bytes) -> Any:
    """Make a node with a constant answer."""
    return lambda *_: lambda *_: answer


WEIGHT = "values/0.weight"


def replies_with(**changes: Any) -> Any:
    """Make a node that changes the head of its answer."""
    return spoiled_by(lambda head, _: head.update(changes))


def answers_for(**changes: Any) -> Any:
    """Make a node that answers for another assignment."""
    return spoiled_by(lambda head, _: head["assignment"].update(changes))


def weighs(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Make a node that sends another weight."""
    return spoiled_by(lambda _, tensors: tensors.update({WEIGHT: change(tensors[WEIGHT])}))


NAN = weighs(lambda t: t.index_fill(0, torch.tensor([0]), torch.nan))
SHAPE = spoiled_by(lambda _, tensors: tensors.update({WEIGHT: torch.zeros(1, 2, 3)}))
LARGE_BODY = spoiled_by(lambda _, tensors: tensors.update(beside=torch.zeros(1_000_000)))
WITHOUT_END = {
    "a long text": (replies_with(problem="no " * 500_000), "at most"),
    "a long name": (replies_with(halved={"x" * 10_000: "y"}), "halved.xxx"),
    "a long shape": (weighs(lambda _: torch.zeros((1,) * 2_000)), "does not fit the cut"),
    "many widths": (replies_with(passes=[[0.5, 1]] * 1000), "it has 1,000 widths"),
    "a large head": (replies_with(beside=[[]] * 1_000_000), "bytes; at most"),
    "a large body": (LARGE_BODY, "bytes; at most"),
}
BAD = {
    "a large head": WITHOUT_END["a large head"],
    "a long shape": WITHOUT_END["a long shape"],
    "not a number": (NAN, "not finite"),
    "shape": (SHAPE, "does not fit the cut"),
    "type": (weighs(torch.Tensor.double), "torch.float64"),
    "a tensor too few": (spoiled_by(lambda _, tensors: tensors.pop(WEIGHT)), "missing or unknown"),
    "an old round": (answers_for(round=-1), "it answers for round 0"),
    "another client": (answers_for(client=2), "client 2"),
    "a round that is none": (answers_for(round="first"), "assignment.round: input should be"),
    "examples": (replies_with(examples=-5), "examples: input should be greater than 0, not -5"),
    "loss": (replies_with(loss="low"), "loss: input should be a valid number"),
    "a number without end": (replies_with(loss=10**400), "loss: input should be a"),
    "a cost without end": (
        replies_with(training=math.inf),
        "training: input should be a finite number",
    ),
    "no head": (spoiled_by(lambda head, _: head.clear()), "assignment: field required"),
    "terminal codes": (replies_with(problem="\x1b[31m\nred"), "its answer: [31m red"),
    "huge": (weighs(lambda t: t * 1e30), "0.weight"),
    "garbage": (answers_with(b"\xff" * 999), "cut short"),
    "nothing": (answers_with(b""), "cut short"),
    "pickle": (answers_with(b"\x80\x04cos\nsystem\n."), "cut short"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BAD)
def test_bad_answers_are_refused_by_name_and_the_rest_is_merged(fault: str) -> None:
    """The model is that of a round without the bad device."""
    config = config_of(clients={"per_round": 4}, devices={"least": 3})
    make, reason = BAD[fault]
    channel, bad = LocalChannel(parts()), 2**63 + 17
    channel.spoil[bad] = make(channel, bad)
    found, reports = rounds_over(config, channel, rounds=1)
    why = {**reports[0].missing, **reports[0].refusals}
    assert list(why) == ["1"]
    assert reason in why["1"]
    assert len(why["1"]) < 600
    assert reports[0].clients == 3
    others = LocalChannel({node: options for node, options in parts().items() if node != bad})
    expected, _ = rounds_over(config, others, rounds=1)
    torch.testing.assert_close(expected.tensors, found.tensors, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("fault", WITHOUT_END)
def test_an_answer_is_bounded_by_the_cut_that_it_is_for(fault: str) -> None:
    """Reading any answer takes no more memory than an honest one."""
    config = config_of()
    setup = prepare(config)
    channel, node = LocalChannel(parts()), 2**63
    task = Dispatcher(setup, initial_state(setup), setup.work).task(Assignment(0, 0, 0.5))
    head_of_run = run_head(config, Facts.of(setup.clients.dataset))
    message = task_message(task, setup.module, False, "exact")
    payload = replace(message, head={**head_of_run, **message.head}).to_bytes()
    limits = update_limits(task, "exact")
    right = channel.honest(node, "train", payload)
    assert len(right) < limits.whole
    assert int.from_bytes(right[:8], "little") < limits.head
    wrong = WITHOUT_END[fault][0](channel, node)("train", payload)
    started = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(WireError) as caught:
            read_update(Message.from_bytes(wrong, limits), task)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 1
    assert len(str(caught.value)) <= 500


def test_what_a_device_says_of_itself_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    heads: dict[str, Any] = {
        "many labels": {"labels": list(range(10**6))},
        "labels that are none": {"labels": list(range(1000, 3000))},
        "a part without end": {"part": 10**400},
        "a long name": {"name": "x" * 10**7},
        "another problem": {"problem": "x" * 10**4},
    }
    config = config_of()

    class Boasting(LocalChannel):
        def honest(self, node: int, kind: MessageKind, payload: bytes) -> bytes:
            head = Message.from_bytes(super().honest(1, kind, payload)).head
            return Message({**head, **list(heads.values())[node - 1]}, {}).to_bytes()

    channel = Boasting(
        {number: DeviceOptions(OwnData(part=0)) for number in range(1, 1 + len(heads))}
    )
    setup, _ = over(config, channel)
    assert isinstance(setup.clients, DeviceClients)
    assert setup.clients.roster.wait(0) == []
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(heads)
    assert max(map(len, lines)) < 600


def test_labels_that_nobody_asked_for_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(local={"absent_labels": "keep"})

    class Telling(LocalChannel):
        def honest(self, node: int, kind: MessageKind, payload: bytes) -> bytes:
            head = Message.from_bytes(super().honest(node, kind, payload)).head
            assert head["labels"] == []
            return Message({**head, "labels": [7]}, {}).to_bytes()

    setup, _ = over(config, Telling({1: DeviceOptions(OwnData(part=0))}))
    assert isinstance(setup.clients, DeviceClients)
    assert setup.clients.roster.wait(0) == []
    assert "labels" in caplog.text


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", "[" * 10**5, '[{"node": 1}]', "\udc00", '[{"node": "x"}]']
)
def test_a_damaged_list_of_devices_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "devices.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CheckpointError, match=r"devices\.json: "):
        read_roster(tmp_path / "devices.json")


def test_a_quorum_closes_a_round_early() -> None:
    config = config_of(
        clients={"per_round": 4}, devices={"least": 4, "deadline": 1000, "quorum": 0.75}
    )
    channel = LocalChannel(parts())
    channel.spoil[2**63] = no_reply
    _, reports = rounds_over(config, channel, rounds=1)
    assert reports[0].clients == 3
    assert "when enough had answered" in reports[0].missing["0"]


@pytest.mark.slow
def test_a_round_that_nobody_answers_is_tried_again_and_then_stops_resumably(
    tmp_path: Path,
) -> None:
    config = config_of(devices={"least": 1, "deadline": 0.1, "tries": 2})
    channel = LocalChannel(parts(1))
    channel.spoil[2**63] = no_reply
    setup, engine = over(config, channel)
    with pytest.raises(SilentRoundError, match="round 1: "):
        step(setup, initial_state(setup), engine, CostModel(setup.module, Facts.of(
            setup.clients.dataset).example))  # fmt: skip
    folder = RunFolder(tmp_path / "run")
    folder.create(config)
    with pytest.raises(Interruption, match=r"round 0 .*: round 1: "):
        run_rounds(Training(config, setup, engine, checkpoint_every=1), folder)
    assert len([1 for _, kind, _ in channel.sent if kind == "train"]) == 3
    channel.spoil.clear()
    state, history = run_rounds(
        Training(config, setup, engine, checkpoint_every=1), folder, resume=True
    )
    assert state.round == 2
    assert [line["clients"] for line in history] == [1, 1]


@pytest.mark.slow
def test_a_run_over_devices_keeps_every_round_and_numbers_devices_as_before(tmp_path: Path) -> None:
    config = config_of(train={"rounds": 3, "checkpoint_every": 50})
    folder = RunFolder(tmp_path / "run")
    folder.create(config)
    file = folder.path / "devices.json"
    channel = LocalChannel(parts())
    setup, engine = over(config, channel, file)

    class Killed(BaseException):
        pass

    def kill(line: dict[str, Any]) -> None:
        if line["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        run_rounds(
            Training(config, setup, engine, checkpoint_every=1), folder, [RoundCallback(kill)]
        )
    assert sorted(entry["client"] for entry in json.loads(file.read_text())) == [0, 1, 2, 3]
    setup, engine = over(config, LocalChannel(parts()), file)
    state, history = run_rounds(
        Training(config, setup, engine, checkpoint_every=1), folder, resume=True
    )
    expected, _ = run_rounds(Training(alone(config), prepare(alone(config))))
    assert [line["round"] for line in history] == [1, 2, 3]
    torch.testing.assert_close(expected.tensors, state.tensors, rtol=0, atol=0)
    device = next(iter(history[0]["devices"].values()))
    counted = {"capacity", "seconds", "bytes_down", "bytes_up"}
    assert device.keys() == {*counted, "training", "peak_memory"}


@pytest.mark.slow
def test_late_devices_join_and_those_who_leave_are_not_asked() -> None:
    config = config_of(clients={"per_round": 4}, devices={"least": 2})
    channel = LocalChannel({node: m for node, m in parts().items() if m.data.part in (0, 2)})
    setup, engine = over(config, channel)
    state, first = step_of(setup, engine=engine)
    channel.options = parts()
    state, second = step_of(setup, state, engine)
    del channel.options[2**63]
    _, third = step_of(setup, state, engine)
    assert [first.clients, second.clients, third.clients] == [2, 4, 3]


def test_a_round_is_planned_from_who_is_there_and_nothing_else() -> None:
    config = config_of(clients={"count": 4, "per_round": 2, "capacities": [1, 0.5]})
    options = parts(3) | {5: DeviceOptions(OwnData(part=3), capacity=0.5)}
    channel = LocalChannel(options)
    setup, _ = over(config, channel)
    present = setup.clients.present(0)
    assert present == {0: None, 1: None, 2: None, 3: 0.5}
    asked_so_far = len(channel.sent)
    channel.options.clear()  # all devices leave, which does not affect the plan
    plans = [plan(setup, round_, present) for round_ in range(8)]
    assert plans == [plan(setup, round_, present) for round_ in range(8)]
    assert len(channel.sent) == asked_so_far
    assert {a.client for assignments in plans for a in assignments} == {0, 1, 2, 3}
    here = prepare(config).population
    for assignment in (a for assignments in plans for a in assignments):
        capacity = (
            0.5 if assignment.client == 3 else here.capacity(assignment.client, assignment.round)
        )
        assert assignment.capacity == capacity
    assert all(a.client in (0, 3) for a in plan(setup, 0, {0: None, 3: 0.5}))


def test_devices_that_do_not_fit_the_run_are_turned_away(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(devices={"least": 1})
    options = parts(1) | {
        1: DeviceOptions(OwnData(part=9)),
        2: DeviceOptions(OwnData(Path("/nowhere/x.npz")), capacity=1.0),
        3: DeviceOptions(OwnData()),
        4: DeviceOptions(OwnData(part=1), capacity=0.01),
        5: DeviceOptions(OwnData(part=2), memory=1000),
    }
    setup, _ = over(config, LocalChannel(options))
    assert chosen(setup) == [0]
    for reason in (
        "node 1 is rejected: part 9: the run has clients 0 to 3",
        "node 2 is rejected: /nowhere/x.npz: expected a folder",
        "node 3 is rejected: this device has no data",
        "node 4 is rejected: --capacity: 0.01 is less than the run's smallest, 0.25",
        "node 5 is rejected: --memory: 1 kB are too few for the run's sub-models",
    ):
        assert reason in caplog.text


def test_two_devices_cannot_play_one_part(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(devices={"least": 1})
    channel = LocalChannel({1: DeviceOptions(OwnData(part=0)), 2: DeviceOptions(OwnData(part=0))})
    setup, _ = over(config, channel)
    assert chosen(setup) == [0]
    assert "part 0 is" in caplog.text


@pytest.mark.slow
def test_static_norms_are_measured_where_the_data_is() -> None:
    """With one device that has all examples, the statistics equal those of a run in one place."""
    config = config_of(
        model={"name": "preresnet18", "width": 2},
        data={"partition": "iid", "examples": 150},
        clients={"count": 1, "per_round": 1, "capacities": [1, 0.5]},
        local={"absent_labels": "keep"},
        devices={"least": 1},
    )
    here = prepare(config)
    channel = LocalChannel({7: DeviceOptions(OwnData(part=0), capacity=1.0)})
    there, _ = over(config, channel, setup=here)
    assert chosen(there) == [0]
    state = initial_state(here)
    expected, found = evaluate_model(here, state), evaluate_model(there, state)
    assert [kind for _, kind, _ in channel.sent] == ["report", "moments"]
    assert found.loss == pytest.approx(expected.loss, rel=1e-4)  # other batches, the same examples
    small = cut_of(here, Assignment(0, 0, 0.5))
    evaluate_model(there, state, small)
    sent = Message.from_bytes(channel.sent[-1][2])
    values = sum(t.numel() for n, t in sent.tensors.items() if n.startswith("values/"))
    assert values == count_values(small, state.tensors)


@pytest.mark.slow
def test_nobody_is_sent_more_than_it_can_hold_not_even_for_statistics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = config_of(model={"name": "preresnet18", "width": 4}, devices={"least": 1})
    channel = LocalChannel({7: DeviceOptions(OwnData(part=0), capacity=0.25)})
    setup, _ = over(config, channel)
    chosen(setup)
    evaluate_model(setup, initial_state(setup))
    assert [kind for _, kind, _ in channel.sent] == ["report"]
    assert "measured" in caplog.text


def test_own_data_is_read_from_pictures_and_arrays(tmp_path: Path) -> None:
    facts = Facts((3, 4, 4), "float32", 3, ("ant", "bee", "cat"), (0.5,) * 3, (0.25,) * 3)
    for name, value in (("bee", 255), ("cat", 0)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("L", (4, 4), value).save(tmp_path / "pictures" / name / "1.png")
    found = OwnData(tmp_path / "pictures").read(Config(), facts)
    assert found.y.tolist() == [1, 2]
    assert found.x.mean(dim=(1, 2, 3)).tolist() == [2.0, -2.0]
    again = OwnData(tmp_path / "pictures").read(Config(), facts)  # the stored values
    assert torch.equal(again.x, found.x)
    save_file({"x": found.x, "y": found.y}, tmp_path / "own.safetensors")
    np.savez(tmp_path / "own.npz", x=found.x.numpy(), y=found.y.numpy())
    for name in ("own.safetensors", "own.npz"):
        own = OwnData(tmp_path / name).read(Config(), facts)
        assert torch.equal(own.x, found.x)
        assert torch.equal(own.y, found.y)
    (tmp_path / "pictures" / "dog").mkdir()
    Image.new("L", (4, 4)).save(tmp_path / "pictures" / "dog" / "1.png")
    with pytest.raises(DataError, match=r"dog: .*ant, bee, cat"):
        OwnData(tmp_path / "pictures").read(Config(), facts)
    with pytest.raises(DataError, match=r"own\.npz: labels .*\b1$"):
        OwnData(tmp_path / "own.npz").read(Config(), replace(facts, classes=2))
    with pytest.raises(DataError, match=r"\(3, 4, 4\), .*\(3, 8, 8\)"):
        OwnData(tmp_path / "own.npz").read(Config(), replace(facts, inputs=(3, 8, 8)))


@pytest.mark.slow
def test_memory_becomes_the_largest_capacity_that_fits() -> None:
    config = config_of(model={"name": "preresnet18", "width": 16})
    setup = prepare(config)
    facts = Facts.of(setup.clients.dataset)
    fits = [
        fitting_capacity(config, setup, facts.example, memory)
        for memory in (10**9, 4 * 10**6, 10**6)
    ]
    assert fits == [1.0, 0.5, 0.25]
    whole = sum(p.nbytes for p in setup.module.parameters())
    needs = Budget(setup.module, setup.axes, facts.example, config.local.batch_size or 1).needs(1.0)
    for copies, memory in ((0, needs.memory), (4, needs.memory + 4 * whole)):
        for short, capacity in ((0, 1.0), (1, 0.5)):
            args = (config, setup, facts.example, memory - short)
            assert fitting_capacity(*args, copies=copies) == capacity
    with pytest.raises(ConfigError, match=r"\b0\.25\b"):
        fitting_capacity(config, setup, facts.example, 10**9, taken_bytes=10**9 - 10**4)
    assert [offered_capacity(config, c) for c in (1, 0.9, 0.5, 0.3)] == [1, 0.5, 0.5, 0.25]


def test_a_device_holds_no_more_than_its_cut() -> None:
    config = config_of(model={"width": 64}, clients={"capacities": [0.25]})
    channel = LocalChannel(parts())
    rounds_over(config, channel, rounds=1)
    node, _, payload = next(sent for sent in channel.sent if sent[1] == "train")
    message = Message.from_bytes(payload)
    device = Device(message.head, channel.options[node])
    assert all(p.is_meta for p in device.setup.module.parameters())
    whole = sum(p.numel() for p in device.setup.module.parameters())
    update = device.train(message)
    assert sum(t.numel() for t in update.tensors.values()) < 0.1 * whole


def test_axes_that_were_kept_are_taken_if_they_are_of_the_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def device(width: int, known: str | None = None) -> Device:
        config = config_of(model={"width": width})
        head_of_run = run_head(config, Facts.of(prepare(config).clients.dataset))
        return Device(head_of_run, DeviceOptions(OwnData(part=0)), known)

    own, other = device(4).axes_json, device(8).axes_json
    marked = own.replace('"unused": []', '"unused": ["a mark"]')
    assert device(4, marked).setup.axes.unused_tensors == ("a mark",)
    assert device(4, other).axes_json == own
    assert not caplog.text
    for broken in ("", "{}", "[1]", own[:-1], own.replace('"Axes"', '"Stored"')):
        assert device(4, broken).axes_json == own
    assert caplog.text.count("not the axes of a model") == 5


def looks_at_values() -> nn.Module:
    """A net that needs values when it is made, so it cannot be made on the meta device."""
    hidden = nn.Linear(64, 8)
    assert float(hidden.weight.detach().abs().sum()) > 0
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(8, 10))


@pytest.mark.slow
def test_a_model_that_cannot_be_made_without_values_is_emptied(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = config_of(model={"name": "tests.federation.test_devices:looks_at_values"})
    here, _ = rounds_here(config, 1)
    facts = Facts.of(prepare(config).clients.dataset)
    module = empty_module(config, facts)
    assert all(p.is_meta for p in module.parameters())
    assert "whole" in caplog.text
    there, _ = rounds_over(config, LocalChannel(parts()), 1)
    torch.testing.assert_close(here.tensors, there.tensors, rtol=0, atol=0)


def test_reports_and_briefings_survive_the_journey() -> None:
    config = config_of()
    facts = Facts.of(prepare(config).clients.dataset)
    head = Message.from_bytes(Message(run_head(config, facts), {}).to_bytes()).head
    device = Device(head, DeviceOptions(OwnData(part=3), name="shed"))
    assert device.config == config
    assert device.facts == facts
    report = Report.read(Message.from_bytes(device.report().to_bytes()).head)
    assert (report.name, report.part, report.capacity) == ("shed", 3, None)
    assert report.examples == len(device.examples)
    assert isinstance(device.examples, Examples)


def test_what_makes_no_sense_over_devices_is_refused_at_once() -> None:
    config = config_of(
        scheme={"name": "masked-sgd"}, clients={"count": 1, "per_round": 1, "capacities": [0.5]}
    )
    with pytest.raises(ConfigError, match=r"^scheme\.name: 'masked-sgd'"):
        over(config, LocalChannel({}))
