"""Make a device misbehave; Python runs this file at the start of every process of the device.

It is on the PYTHONPATH of devices under test only. The folder in SUBMODEL_TEST_FAULTS has ``plan``,
with a word for each request to train (the last word repeats), and gets ``asked``, with a line
"round process fault" for each request.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_APP = "submodel.federation.flower.client_app"
_FOLDER = os.environ.get("SUBMODEL_TEST_FAULTS")


class _Finder(MetaPathFinder):
    """Import the device's app, then modify it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _APP:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.loader is not None
        load = spec.loader.exec_module

        def load_and_spoil(module: ModuleType) -> None:
            load(module)
            vars(module)["answer"] = spoiled(vars(module)["answer"], Path(str(_FOLDER)))

        vars(spec.loader)["exec_module"] = load_and_spoil
        return spec


def spoiled(honest: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Wrap the app's function for messages with the planned faults."""

    def answer(kind: str, message: Any, context: Any) -> Any:
        if kind != "train":
            return honest(kind, message, context)
        plan, asked = (folder / "plan").read_text().split(), folder / "asked"
        before = len(asked.read_text().splitlines()) if asked.exists() else 0
        fault = plan[min(before, len(plan) - 1)]
        with asked.open("a") as file:
            file.write(f"{message.metadata.group_id} {os.getpid()} {fault}\n")
        while fault == "hold" and (folder / "hold").exists():
            time.sleep(0.1)
        if fault == "raise":
            raise RuntimeError("this app is broken")
        return _reply(honest(kind, message, context), message, fault, folder / "last")

    return answer


def _reply(reply: Any, message: Any, fault: str, last: Path) -> Any:
    """Return the honest reply, or its faulty version."""
    import torch
    from flwr.app import Message as FlowerMessage
    from flwr.app import RecordDict

    from submodel.federation.flower.messages import payload_of, to_records
    from submodel.federation.wire import Message

    before = last.read_bytes() if last.exists() else b""
    last.write_bytes(payload_of(reply))
    ours = Message.from_bytes(payload_of(reply))
    tensors = dict(ours.tensors)
    if fault == "nan":
        tensors["values/0.weight"][0] = float("nan")
    elif fault == "shape":
        tensors["values/0.weight"] = torch.zeros(1, 2, 3)
    elif fault == "large":  # more than its cut has, in as many pieces
        tensors["beside"] = torch.zeros(1_000_000)
    elif fault == "endless":  # 100 MB
        tensors["beside"] = torch.arange(25_000_000, dtype=torch.int32)
    elif fault == "equal":  # as much, in equal chunks, which are sent once
        tensors["beside"] = torch.zeros(25_000_000)
    elif fault == "old":
        return FlowerMessage(to_records(before), reply_to=message)
    elif fault == "garbage":
        return FlowerMessage(to_records(b"\xff" * 999), reply_to=message)
    elif fault == "empty":
        return FlowerMessage(RecordDict(), reply_to=message)
    else:
        return reply
    return FlowerMessage(to_records(Message(ours.head, tensors).to_bytes()), reply_to=message)


if _FOLDER is not None:
    sys.meta_path.insert(0, _Finder())
