"""Size limits of requests to a SuperLink: small without a registered key, else a chunk.

Flower reads the whole body of a request before it checks the key, and accepts answers of any size.
Its devices send a message in pieces: a tree of objects first, then each object, with values in
chunks of a few megabytes. So no valid request is longer than a chunk, and no valid answer has more
objects than the message that it answers, because it returns the values of that message.

The launcher runs this file by its path (launcher.py), so it imports nothing of the package.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any, NoReturn

AsgiScope = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[MutableMapping[str, Any]]]

PUSH_OBJECT = "/v1/fleet/push-object"
UNREGISTERED_BYTES = 1 << 16
"""Limit of a request without a registered key, in bytes."""
TREE_BYTES = 1 << 20
"""Limit of any request other than an object, in bytes: a tree of 15,000 chunks."""
_AROUND = 1 << 16  # overhead of a request over its object
_SPARE = 2  # additional objects that an answer may have
_MOST_MESSAGES = 1 << 17  # messages of known size; the oldest are dropped


def largest_body(path: str, chunk: int) -> int:
    """Return the limit of one request of a registered device, in bytes.

    >>> largest_body("/v1/fleet/push-object", 5_000_000), largest_body("/v1/fleet/get-run", 1)
    (5065536, 1048576)
    """
    return chunk + _AROUND if path == PUSH_OBJECT else TREE_BYTES


def declared_length(scope: AsgiScope) -> int:
    """Return the declared length of a request; 0 if it is missing or not a number."""
    header = dict(scope["headers"]).get(b"content-length", b"0")
    return int(header[:20]) if header.isdigit() else 0


async def whole_body(receive: AsgiReceive, most: int) -> bytes | None:
    """Return the body of a request; None if it is longer than ``most`` or incomplete."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def replay(body: bytes, receive: AsgiReceive) -> AsgiReceive:
    """Return a receiver that repeats a body that was already read."""
    messages: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": body, "more_body": False}
    ]

    async def again() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await receive()

    return again


class RegisteredKeys:
    """Check of registered keys, by the same functions as Flower after the body was read."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: AsgiScope) -> bool:
        """Whether the headers are signed with the key of a registered device."""
        return await asyncio.to_thread(self._is_registered, {**scope, "app": self._app})

    def _is_registered(self, scope: AsgiScope) -> bool:
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
        from flwr.superlink.dependencies.linkstate import get_linkstate
        from flwr.superlink.routers.fleet.node_auth import authenticate_node
        from starlette.exceptions import HTTPException
        from starlette.requests import Request

        request = Request({**scope, "state": {}})
        try:
            key = b64decode(request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)
            if not key or get_linkstate(request).get_node_id_by_public_key(key) is None:
                return False
            request.state.protobuf_request = ActivateNodeRequest(public_key=key)
            authenticate_node(request)
        except (HTTPException, ValueError):
            return False
        return True


class AnswerLimits:
    """Filter that refuses answers with more objects or chunks than the message they answer.

    It wraps three of Flower's handlers, see `guard_answers`. Equal chunks are one object, which an
    array may list any number of times: a few megabytes could expand without limit.
    """

    def __init__(
        self, pull: Callable[..., Any], push: Callable[..., Any], store: Callable[..., Any]
    ) -> None:
        self._pull, self._push, self._store = pull, push, store
        self._sizes: OrderedDict[str, int] = OrderedDict()  # by message sent

    def pull(self, *args: Any, **kwargs: Any) -> Any:
        """Call Flower's handler and record the sizes of the messages."""
        reply = self._pull(*args, **kwargs)
        for message, tree in zip(reply.messages_list, reply.message_object_trees, strict=False):
            objects = list(objects_in(tree))
            # only objects with parts are inspected: values are not read twice
            contents = [kwargs["store"].get(one.object_id) for one in objects if one.children]
            size = len(objects) + sum(chunks_of(content or b"") for content in contents)
            self._sizes[message.metadata.message_id] = size
        while len(self._sizes) > _MOST_MESSAGES:
            self._sizes.popitem(last=False)
        return reply

    def push(self, *args: Any, **kwargs: Any) -> Any:
        """Call Flower's handler unless the answer is too large."""
        request = kwargs["request"]
        for message, tree in zip(request.messages_list, request.message_object_trees, strict=False):
            size = self._sizes.get(message.metadata.reply_to_message_id, 0)
            if (objects := sum(1 for _ in objects_in(tree))) > size + _SPARE:
                _refuse(request, f"{objects} objects answer {size}")
        return self._push(*args, **kwargs)

    def store(self, *args: Any, **kwargs: Any) -> Any:
        """Call Flower's handler unless an array has more chunks than the largest message."""
        request = kwargs["request"]
        most = max(self._sizes.values(), default=0) + _SPARE
        if (chunks := chunks_of(request.object_content)) > most:
            _refuse(request, f"an array of {chunks} chunks; at most {most} were sent")
        return self._store(*args, **kwargs)


def _refuse(request: Any, why: str) -> NoReturn:
    from flwr.supercore.error import ApiErrorCode, FlowerError

    raise FlowerError(
        ApiErrorCode.INVALID_PROTOBUF_PAYLOAD, f"SuperNode {request.node.node_id}: {why}"
    )


def chunks_of(content: bytes) -> int:
    """Return the number of chunks of an array as Flower stores it; 0 if it is no array.

    >>> chunks_of(b'Array id 29' + bytes(1) + b'{"arraychunk_ids": [0, 0, 0]}')
    3
    """
    if not content.startswith(b"Array "):
        return 0
    body = content[content.find(b"\0") + 1 :]
    if len(body) > TREE_BYTES:
        return len(body)
    try:
        return len(json.loads(body)["arraychunk_ids"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return len(body)  # an array that cannot be assembled


def objects_in(tree: Any) -> Iterator[Any]:
    """Yield the objects of one of Flower's trees."""
    waiting = [tree]
    while waiting:
        yield (one := waiting.pop())
        waiting.extend(one.children)


def guard_answers() -> None:
    """Make Flower's handlers refuse oversized answers."""
    from flwr.superlink.servicer.fleet import fleet_handlers as handlers

    answers = AnswerLimits(handlers.pull_messages, handlers.push_messages, handlers.push_object)
    handlers.pull_messages, handlers.push_messages = answers.pull, answers.push
    handlers.push_object = answers.store
