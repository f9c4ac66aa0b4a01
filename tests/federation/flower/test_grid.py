"""Answers over Flower's grid that come in parts, come to nothing, or are no answers."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Message, MessageType, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid

from submodel.federation.flower.grid import GridPost
from submodel.federation.flower.messages import to_records
from submodel.federation.post import Reply


class Link:
    """A SuperLink in this process: what devices have announced, and the parts that have come."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.dropped: set[str] = set()
        self.confirmed: list[str] = []
        self.fetched: list[str] = []
        self._announced: dict[str, tuple[Any, ObjectTree]] = {}

    def announce(self, ticket: str, payload: bytes) -> tuple[str, dict[str, bytes]]:
        """An answer by its tree; its number, and its parts."""
        question = Message(RecordDict(), 7, MessageType.TRAIN)
        vars(question.metadata)["_message_id"] = ticket
        answer = Message(to_records(payload), reply_to=question)
        number = answer.object_id
        vars(answer.metadata)["_message_id"] = number
        proto = message_to_proto(remove_content_from_message(answer))
        self._announced[ticket] = (proto, get_object_tree(answer))
        return number, {i: o.deflate() for i, o in get_all_nested_objects(answer).items()}

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        found = [self._announced.pop(t) for t in request.message_ids if t in self._announced]
        return PullAppMessagesResponse(
            messages_list=[proto for proto, _ in found],
            message_object_trees=[tree for _, tree in found],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        content = self.parts.get(request.object_id, b"")
        if content:
            self.fetched.append(request.object_id)
        is_known = request.object_id not in self.dropped
        return PullObjectResponse(
            object_found=is_known, object_available=bool(content), object_content=content
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def post(link: Link, monkeypatch: pytest.MonkeyPatch) -> GridPost:
    for name in ("_run_id", "_node_id", "_task_id"):  # Flower's processes know who they are
        monkeypatch.setattr(TaskIdentity, name, 1)
    grid = HttpGrid(token="-")
    monkeypatch.setattr(HttpGrid, "run", SimpleNamespace(run_id=1))
    monkeypatch.setattr(HttpGrid, "_runtime_client", link)
    return GridPost(grid)


def payloads(replies: Sequence[Reply]) -> dict[str, bytes]:
    assert not [reply.problem for reply in replies if reply.problem]
    return {reply.ticket: reply.payload for reply in replies}


def test_an_answer_that_is_announced_and_not_sent_holds_up_no_other(
    post: GridPost, link: Link
) -> None:
    late, parts = link.announce("late", b"late" * 100)
    assert payloads(post.replies(["late", "honest"])) == {}
    number, others = link.announce("honest", b"honest")
    link.parts |= others
    assert payloads(post.replies(["late", "honest"])) == {"honest": b"honest"}
    assert link.confirmed == [number]
    first = next(iter(parts))
    link.parts[first] = parts[first]
    assert payloads(post.replies(["late"])) == {}
    link.parts |= parts
    assert payloads(post.replies(["late"])) == {"late": b"late" * 100}
    assert payloads(post.replies(["late"])) == {}  # each once
    assert link.confirmed == [number, late]


def test_an_answer_whose_parts_flower_has_dropped_is_lost(post: GridPost, link: Link) -> None:
    _, parts = link.announce("1", b"x")
    assert payloads(post.replies(["1"])) == {}
    link.dropped |= parts.keys()
    assert post.replies(["1"]) == [Reply("1", b"", "its answer was lost")]
    assert post.replies(["1"]) == []


def test_parts_of_an_answer_that_comes_too_late_are_not_kept(post: GridPost, link: Link) -> None:
    _, parts = link.announce("1", b"x")
    assert payloads(post.replies(["1"])) == {}
    post.forget(["1", "2"])
    link.parts |= parts
    assert payloads(post.replies(["1"])) == {}


@pytest.mark.parametrize("content", [b"x", b"Message  0\0", b"Array  2\0{}", b"Odd  0\0"])
def test_parts_that_are_no_message_are_the_fault_of_their_device_alone(
    post: GridPost, link: Link, content: bytes
) -> None:
    number, parts = link.announce("1", b"x")
    link.parts |= parts | {number: content}
    assert post.replies(["1"]) == [Reply("1", b"", "its answer is no message of Flower's")]
