"""What a run is given in Python, beside its configuration: module, data and how to read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn import functional

from submodel.config import Config
from submodel.data import Dataset
from submodel.data.partitions import parse_lists
from submodel.errors import ConfigError
from submodel.model.axes import Axes, Dimension
from submodel.prepare.fit import check_kinds
from submodel.prepare.objective import keep_clients
from submodel.prepare.selection import Selector, select_outputs
from submodel.prepare.setup import prepare
from submodel.runs.training import Metric, Training
from submodel.tasks.loss import Loss


@dataclass(frozen=True)
class Material:
    """A module and data of the user's own; None of both where the configuration names them.

    Args:
        model: the module.
        data: the examples.
        axes: what is cut together, if that is not to be traced.
        loss: of a batch, from outputs and targets; None: the configuration's.
        outputs: selects from what the module returns the tensor that counts.
        clients: the positions of every client's training examples.
        metrics: scores by name.
    """

    model: nn.Module | None = None
    data: Dataset | None = None
    axes: Axes | Mapping[str, tuple[Dimension, ...]] | None = None
    loss: Loss | None = None
    outputs: Selector | None = None
    clients: Any = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def training(self, config: Config, located: Config | None = None) -> Training:
        """What is trained by a configuration; raises `ConfigError` where it does not fit.

        Args:
            config: what the run keeps.
            located: the same, with paths as they are found now; None: as they are.
        """
        check_kinds(self.model, self.data, self.loss or functional.cross_entropy)
        model, partition = self.model, None
        if self.outputs is not None:
            if model is None or not callable(self.outputs):
                raise ConfigError(
                    [f"outputs: {self.outputs!r} is not a function of what a model= returns"]
                )
            model = select_outputs(model, self.outputs)
        if self.clients is not None:
            if self.data is None:
                raise ConfigError(["clients: lists the examples of data=, which is not given"])
            partition = parse_lists(self.clients, len(self.data.train))
            if len(partition.lists) != config.clients.client_count:
                raise ConfigError(
                    [
                        f"clients.count: {config.clients.client_count} is not the number of lists "
                        f"in clients=, {len(partition.lists)}"
                    ]
                )
        setup = prepare(located or config, model, self.data, self.axes, self.loss, partition)
        metrics = dict(self.metrics)
        config, takes_module = keep_clients(config, setup), self.model is None
        return Training(config, setup, metrics=metrics, takes_module=takes_module)
