"""Contender `pfl`: pfl-research with PyTorch, at capacity 1, as it cannot cut models.

It runs two processes of one thread each, with our clients and batches, FedAvg and no evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.speed.pair import LOOPBACK, PROCESSES, free_port, serve_together, start_other
from benchmarks.speed.tasks import channels_last
from benchmarks.speed.worker import Report, options, reserve_stdout
from benchmarks.speed.workloads import Workload, make_setup
from torch import Tensor, nn
from torch.nn import functional

from submodel.algorithm.rounds import plan
from submodel.algorithm.types import Setup
from submodel.tasks.training import batches

_NEVER = 10**9


class Net(nn.Module):
    """Our module with the methods that pfl needs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.losses: list[Tensor] = []

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss of a batch."""
        value = functional.cross_entropy(self.net(x), y)
        self.losses.append(value.detach().clone())  # pfl scales the value in place
        return value

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, object]:
        """Compute the metrics of a batch; pfl needs them in its first iteration only (warm-up)."""
        from pfl.metrics import Weighted

        return {
            "loss": Weighted(
                float(functional.cross_entropy(self.net(x), y).detach()) * len(y), len(y)
            )
        }


class Pfl:
    """A run of pfl, one central iteration per round."""

    def __init__(self, setup: Setup, workload: Workload) -> None:
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.hyperparam import NNTrainHyperParams
        from pfl.model.pytorch import PyTorchModel

        torch.set_num_threads(1)
        work, train = setup.work, setup.clients.dataset.train
        self._setup, self._workload = setup, workload
        self._x, self._y = train.x.permute(0, 2, 3, 1).contiguous(), train.y
        self._round = 0
        self._net = Net(channels_last(setup.module).train())
        self._model = PyTorchModel(
            self._net,
            local_optimizer_create=partial(torch.optim.SGD, **vars(work.optimiser)),
            central_optimizer=torch.optim.SGD(self._net.parameters(), lr=1.0),
        )
        users = self._users()
        data = FederatedDataset(self._images, lambda: next(users))
        self._backend = SimulatedBackend(training_data=data, val_data=data)
        self._algorithm = FederatedAveraging()
        self._local = NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch_size
        )

    def _users(self) -> Iterator[tuple[int, int]]:
        """Yield round and client of every user of pfl, by our plan."""
        round_ = 0
        while True:
            yield from ((round_, a.client) for a in plan(self._setup, round_))
            round_ += 1

    def _images(self, user: tuple[int, int]) -> object:
        """Return the images of a client in the order of our batches."""
        from pfl.data.pytorch import PyTorchTensorDataset

        round_, client = user
        indices = self._setup.clients.indices(client)
        order = batches(len(indices), self._setup.work, self._setup.seed, round_, client)
        chosen = torch.from_numpy(indices[np.concatenate(list(order))])
        return PyTorchTensorDataset((self._x[chosen].permute(0, 3, 1, 2), self._y[chosen]))

    def round(self) -> Report:
        """Run one more iteration of pfl."""
        from pfl.algorithm.base import NNAlgorithmParams

        self._round += 1
        parameters = NNAlgorithmParams(
            central_num_iterations=self._round,
            evaluation_frequency=_NEVER,
            train_cohort_size=self._workload.per_round,
            val_cohort_size=None,
        )
        self._algorithm.run(
            parameters, self._backend, self._model, self._local, send_metrics_to_platform=False
        )
        end = time.perf_counter()
        totals = torch.tensor([float(sum(self._net.losses)), float(len(self._net.losses))])
        self._net.losses.clear()
        dist.all_reduce(totals)
        return {"end": end, "loss": float(totals[0] / totals[1])}


def main() -> None:
    out = reserve_stdout()
    workload, scale = options()
    addresses = ",".join(f"{LOOPBACK}:{free_port()}" for _ in range(PROCESSES))
    start_other(
        "benchmarks.speed.pfl",
        lambda rank: {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)},
    )
    import pfl.internal.ops.pytorch_ops  # noqa: F401 - joins the two processes

    _, setup = make_setup(workload, scale)
    serve_together(out, workload, Pfl(setup, workload).round, "FedAvg")


if __name__ == "__main__":
    main()
