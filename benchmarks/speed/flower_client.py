"""The client of contender `flower`, in a module of its own so that Ray's actors import it once."""

from __future__ import annotations

from functools import lru_cache

import torch
from benchmarks.speed.tasks import Job, Trainer
from benchmarks.speed.workloads import WORKLOADS, make_setup
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from submodel.algorithm.dispatch import cut_of
from submodel.algorithm.types import Assignment, Setup


@lru_cache(maxsize=1)
def _ready(workload: str, scale: float) -> tuple[Setup, Trainer]:
    """Everything that an actor keeps between messages."""
    torch.set_num_threads(1)
    _, setup = make_setup(WORKLOADS[workload], scale)
    return setup, Trainer(setup)


def train(message: Message, _: Context) -> Message:
    """Train the sub-model that came, on the images of the client that it is for."""
    told = message.content["task"]
    assert isinstance(told, ConfigRecord)
    setup, trainer = _ready(str(told["workload"]), float(str(told["scale"])))
    where = Assignment(
        int(str(told["round"])), int(str(told["client"])), float(str(told["capacity"]))
    )
    job = Job(where.round, where.client, where.capacity, cut_of(setup, where))
    trainer.make_ready([job])
    arrays = message.content["model"]
    assert isinstance(arrays, ArrayRecord)
    trainer.load(job, arrays.to_torch_state_dict())
    tensors, loss = trainer.train(job)
    content = RecordDict(
        {"model": ArrayRecord(dict(tensors)), "loss": MetricRecord({"loss": loss})}
    )
    return Message(content, reply_to=message)
