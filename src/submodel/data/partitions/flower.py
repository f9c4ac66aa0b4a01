"""Partitions by any partitioner of ``flwr-datasets``, which sees the labels and nothing else."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from submodel.data.partitions.base import PartitionContext, Positions
from submodel.data.partitions.lists import ClientLists
from submodel.errors import ConfigError
from submodel.options import Section


class Flower:
    """A partitioner of flwr-datasets, by the name of its class."""

    class Options(Section):
        """The keys of ``flwr``."""

        partitioner: str = Field(
            description='a class of flwr-datasets, as "PathologicalPartitioner"'
        )
        partitioner_options: dict[str, Any] = Field({}, description="its keyword arguments")

    @classmethod
    def problems(cls, options: Options, context: PartitionContext) -> list[str]:  # noqa: ARG003
        """Not without labels."""
        return context.label_problems("flwr")

    @classmethod
    def configured(cls, options: Options, context: PartitionContext) -> ClientLists:
        """Whatever the partitioner makes, if every client has examples."""
        labels = context.require_labels("flwr")
        return flower_partition(
            labels, context.clients, options.partitioner, options.partitioner_options, context.seed
        )


def flower_partition(
    labels: NDArray[np.int64], clients: int, name: str, options: Mapping[str, Any], seed: int
) -> ClientLists:
    """What the partitioner ``name`` makes of the labels; every example once, no client empty.

    ``num_partitions``, ``partition_by`` and ``seed`` are filled in where the partitioner takes them
    and the options do not say otherwise. It gets a table with the columns "label" and "row", so
    that its parts can be traced back to positions.
    """
    partitioner = _make(name, options, clients, seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they warn of is checked below, and refused
            parts = _parts(partitioner, labels)
    except Exception as error:  # a partitioner raises what it likes; its words say what is wrong
        raise ConfigError([f"data.partitioner: {name}: {error}"]) from None
    if len(parts) != clients:
        raise ConfigError(
            [f"clients.count: {clients}, but {name} makes {len(parts)} parts of these options"]
        )
    check_parts(parts, len(labels), name)
    return ClientLists(tuple(parts))


def _parts(partitioner: Any, labels: NDArray[np.int64]) -> list[Positions]:
    import datasets

    partitioner.dataset = datasets.Dataset.from_dict(
        {"label": labels.tolist(), "row": list(range(len(labels)))}
    )
    return [
        np.sort(np.asarray(partitioner.load_partition(part)["row"], dtype=np.int64))
        for part in range(int(partitioner.num_partitions))
    ]


def _make(name: str, options: Mapping[str, Any], clients: int, seed: int) -> Any:
    try:
        from flwr_datasets import partitioner as partitioners
    except ImportError:
        raise ConfigError(
            [
                "data.partition: 'flwr' needs the package 'flwr-datasets': "
                "pip install 'submodel[partitioners]'"
            ]
        ) from None
    names = sorted(
        class_name
        for class_name in vars(partitioners)
        if class_name.endswith("Partitioner") and class_name != "Partitioner"
    )
    if name not in names:
        raise ConfigError([f"data.partitioner: {name!r} is not one of {', '.join(names)}"])
    kind = getattr(partitioners, name)
    defaults = {"num_partitions": clients, "partition_by": "label", "seed": seed}
    parameters = inspect.signature(kind).parameters
    arguments = {key: value for key, value in defaults.items() if key in parameters} | dict(options)
    try:
        return kind(**arguments)
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError([f"data.partitioner_options: {name}: {error}"]) from None


def check_parts(parts: list[Positions], total: int, name: str) -> None:
    """Refuse parts that lose an example, give one twice, or leave a client empty."""
    times = np.bincount(np.concatenate(parts), minlength=total)
    problems = []
    if missing := int((times == 0).sum()):
        problems.append(
            f"data.partitioner: {name} gives {missing:,} of {total:,} examples to nobody, the "
            f"first is {int((times == 0).argmax())}"
        )
    if twice := int((times > 1).sum()):
        problems.append(
            f"data.partitioner: {name} gives {twice:,} examples to more than one client, the first "
            f"is {int((times > 1).argmax())}"
        )
    if empty := [client for client, part in enumerate(parts) if not len(part)]:
        problems.append(
            f"data.partitioner: {name} leaves {len(empty)} clients without examples, the first is "
            f"{empty[0]}"
        )
    if problems:
        raise ConfigError(problems)
