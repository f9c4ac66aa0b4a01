"""Contender `bare`: an optimised hand-written loop in one process.

Cuts and modules are made before the clock starts; the number of threads (1 or 2) and the memory
format are the fastest of the warm-up.
"""

from __future__ import annotations

import itertools
import time

import torch
from benchmarks.speed.tasks import Average, Trainer, jobs_of, seconds_of
from benchmarks.speed.worker import Report, options, reserve_stdout, serve
from benchmarks.speed.workloads import make_setup

from submodel.algorithm.types import Setup
from submodel.model.build import tensors_of

_TRIALS, _TRIED_STEPS = 3, 2


class Bare:
    """The global model with its training loop."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._round = 0
        self._tensors = {n: t.clone() for n, t in tensors_of(setup.module).items()}
        self.setting, self._trainer = self._choose()

    def _choose(self) -> tuple[str, Trainer]:
        """Choose the fastest of four settings on one job of every shape."""
        jobs = list({job.cut.shape_key: job for job in jobs_of(self._setup, 0)}.values())
        trainers = {last: Trainer(self._setup, channels_last=last) for last in (True, False)}
        for trainer in trainers.values():
            trainer.make_ready(jobs)
            seconds_of(trainer, jobs, self._tensors, limit=1)
        tried: dict[tuple[int, bool], float] = {}
        for _, threads, last in itertools.product(range(_TRIALS), (1, 2), trainers):
            torch.set_num_threads(threads)
            seconds = seconds_of(trainers[last], jobs, self._tensors, _TRIED_STEPS)
            tried[threads, last] = min(seconds, tried.get((threads, last), seconds))
        threads, last = min(tried, key=lambda setting: tried[setting])
        torch.set_num_threads(threads)
        order = "channels_last" if last else "contiguous"
        return f"{threads} thread{'s' * (threads > 1)}, {order}", trainers[last]

    def round(self) -> Report:
        """Train every job, then average."""
        jobs = jobs_of(self._setup, self._round)
        self._trainer.make_ready(jobs)
        start = time.perf_counter()
        average, total = Average(self._tensors), 0.0
        for job in jobs:
            self._trainer.load(job, {n: job.cut.part(n, t) for n, t in self._tensors.items()})
            tensors, loss = self._trainer.train(job)
            average.add(job.cut, tensors)
            total += loss
        self._tensors = average.result()
        seconds = time.perf_counter() - start
        self._round += 1
        return {"seconds": seconds, "loss": total / len(jobs)}


def main() -> None:
    out = reserve_stdout()
    workload, scale = options()
    _, setup = make_setup(workload, scale)
    bare = Bare(setup)
    serve(out, workload, bare.round, note=bare.setting)


if __name__ == "__main__":
    main()
