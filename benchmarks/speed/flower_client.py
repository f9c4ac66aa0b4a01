"""Client of the contender `flower`, in a separate module so that Ray's actors import it once."""

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
    """Return the cached setup and trainer of an actor."""
    torch.set_num_threads(1)
    _, setup = make_setup(WORKLOADS[workload], scale)
    return setup, Trainer(setup)


def train(message: Message, _: Context) -> Message:
    """Train the received sub-model on the images of its client."""
    task = message.content["task"]
    assert isinstance(task, ConfigRecord)
    setup, trainer = _ready(str(task["workload"]), float(str(task["scale"])))
    where = Assignment(
        int(str(task["round"])), int(str(task["client"])), float(str(task["capacity"]))
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
