"""The server reads any message of a stranger or refuses it with a reason."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from submodel.algorithm.dispatch import Dispatcher
from submodel.algorithm.rounds import initial_state
from submodel.algorithm.types import Assignment, Task, Update
from submodel.core.errors import plain
from submodel.federation.device import Report
from submodel.federation.wire import (
    Message,
    TrainingCost,
    WireError,
    read_as,
    read_moments,
    read_task,
    read_update,
    task_message,
    update_message,
)
from submodel.model.cut import CoordinateCut
from submodel.schemes import Static
from submodel.schemes.ordered import NestedSteps
from submodel.tasks.training import LocalWork
from tests.support.common import tiny_setup

CUT = CoordinateCut({"w": torch.tensor([True, False, True])})
HELD = {"w": torch.tensor([1.0, 0.0, 1.0]), "b": torch.ones(2)}
RULE = NestedSteps((0.25, 0.5))
TASK = Task(Assignment(3, 1, 0.5), CUT, HELD, LocalWork(lr=0.1), None, step_rule=RULE)
UPDATE = Update(TASK.assignment, CUT, HELD, 5, 10, 0.25, ((0.5, 10),))
HONEST = update_message(UPDATE, TASK, "exact")
REPORT = Report("mine", 5, (0, 2), 0.5, None, "abc").head()

numbers = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400), 1 << 53, 1 << 63])
leaves = st.none() | st.booleans() | numbers | st.text(max_size=5)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
dtypes = st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64])
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.builds(lambda dtype, shape: torch.ones(shape, dtype=dtype), dtypes, shapes)


def changed(honest: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Change keys of an honest head, at the top level or one below."""
    paths: list[tuple[str, ...]] = [(key,) for key in honest]
    paths += [(key, k) for key, inner in honest.items() if isinstance(inner, dict) for k in inner]

    def apply(changes: list[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
        head = json.loads(json.dumps(honest))
        for path, value in changes:
            inner = head
            for key in path[:-1]:
                inner = inner[key] if isinstance(inner[key], dict) else {}
            inner[path[-1]] = value
        return dict(head)

    pairs = st.tuples(st.sampled_from(paths), values)
    return st.lists(pairs, min_size=1, max_size=2).map(apply)


def travelled(head: dict[str, Any], parts: dict[str, torch.Tensor]) -> Message:
    return Message.from_bytes(Message(head, parts).to_bytes())


def test_an_honest_answer_is_read() -> None:
    read = read_update(travelled(dict(HONEST.head), dict(HONEST.tensors)), TASK)
    assert read.assignment == TASK.assignment
    assert (read.examples, read.examples_used, read.loss, read.passes) == (
        5,
        10,
        0.25,
        ((0.5, 10),),
    )
    assert read.tensors["w"].tolist() == [1.0, 0.0, 1.0]


def test_passes_are_those_of_the_widths_that_were_asked() -> None:
    plain_steps = replace(TASK, step_rule=None)
    with pytest.raises(WireError, match=r"\b1 widths\b.*\b0\b"):
        read_update(travelled(dict(HONEST.head), dict(HONEST.tensors)), plain_steps)


def test_a_task_travels_with_the_step_rule_of_the_scheme_or_without() -> None:
    """The rule itself is not sent, as a device has the same scheme."""
    setup = tiny_setup("mlp", scheme={"name": "ordered", "distill": 0.5})
    task = Dispatcher(setup, initial_state(setup), setup.work).task(Assignment(0, 1, 0.5))
    for sent in (task, replace(task, step_rule=None)):
        message = task_message(sent, setup.module, False, "exact")
        read = read_task(Message.from_bytes(message.to_bytes()), setup)
        assert (read.step_rule, read.work) == (sent.step_rule, sent.work)
    assert task.step_rule == NestedSteps((0.25, 0.5), 0.5)
    message = task_message(task, setup.module, False, "exact")
    with pytest.raises(WireError, match="rule"):
        read_task(message, replace(setup, scheme=Static()))


@pytest.mark.slow
@given(head=changed(dict(HONEST.head)), parts=st.none() | st.dictionaries(
    st.sampled_from(["values/w", "values/b", "masks/w", "x"]), tensors))  # fmt: skip
def test_an_update_is_read_or_refused(
    head: dict[str, Any], parts: dict[str, torch.Tensor] | None
) -> None:
    with suppress(WireError):
        message = travelled(head, dict(HONEST.tensors) if parts is None else parts)
        read_as(TrainingCost, message.head)
        read = read_update(message, TASK)
        assert read.assignment == TASK.assignment
        assert {n: t.shape for n, t in read.tensors.items()} == {"w": (3,), "b": (2,)}
        assert 0 < read.examples < 1 << 53
        assert float("-inf") < read.loss < float("inf")


@given(changed(REPORT))
def test_a_report_is_read_or_refused(head: dict[str, Any]) -> None:
    with suppress(WireError):
        report = Report.read(travelled(head, {}).head)
        assert report.examples > 0
        assert report.name.isprintable()


@given(st.dictionaries(st.just("rows"), tensors))
def test_statistics_are_read_or_refused(parts: dict[str, torch.Tensor]) -> None:
    with pytest.raises(WireError, match="statistics"):
        read_moments(travelled({}, parts), 7)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda b: b"\x20" + bytes(7) + b))
def test_bytes_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        Message.from_bytes(data)


@given(st.text(), st.integers(1, 50))
def test_what_is_shown_of_a_stranger_is_printable_and_short(text: str, longest: int) -> None:
    shown = plain(text, longest)
    assert len(shown) <= longest
    assert shown.isprintable()
