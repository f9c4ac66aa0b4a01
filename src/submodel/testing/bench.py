"""The small run that schemes are tried on: a net with a flatten, forty images, five clients."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from submodel.algorithm.execution import Bundle
from submodel.algorithm.rounds import initial_state, step
from submodel.algorithm.types import Assignment, Setup, State
from submodel.config import Config, parse
from submodel.data import Dataset, dataset
from submodel.engines.serial import SerialEngine
from submodel.errors import ConfigError
from submodel.model.axes import Axes, trace
from submodel.model.cost import CostModel
from submodel.prepare.findings import ModelFindings
from submodel.prepare.setup import prepare
from submodel.randomness import seeded
from submodel.schemes import Scheme

BudgetScope = Literal["axis", "total"]
ROUNDS = 4
"""How long the small run is."""
_SECTIONS: dict[str, dict[str, Any]] = {
    "clients": {"count": 5, "per_round": 3, "capacities": [1, 0.5, 0.25]},
    "data": {"partition": "iid"},
    "local": {"steps": 2, "batch_size": 3, "lr": 0.05, "absent_labels": "keep"},
}


@lru_cache(maxsize=1)
def _net() -> nn.Module:
    with seeded(0):
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8),
        )  # fmt: skip


@lru_cache(maxsize=1)
def _data() -> Dataset:
    y = torch.arange(40) % 8
    x = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(0)) + y.view(-1, 1, 1, 1)
    return dataset((x, y), (x[:8], y[:8]))


@lru_cache(maxsize=1)
def _axes() -> Axes:
    return trace(_net(), _data().example)


@lru_cache(maxsize=4)
def costs_of(module: nn.Module) -> CostModel:
    """Of the small net, or of the low-rank one that a configuration makes of it."""
    return CostModel(module, _data().example)


class OneByOne(SerialEngine):
    """The serial engine in either order; what work costs does not matter here."""

    def __init__(self, setup: Setup, backwards: bool = False) -> None:
        super().__init__(setup)
        self._step = -1 if backwards else 1

    def bundles(self, assignments: Sequence[Assignment]) -> list[Bundle]:
        """Everyone alone."""
        return [Bundle([assignment]) for assignment in assignments[:: self._step]]


@dataclass(frozen=True)
class SchemeBench:
    """The small run, made as often as fresh schemes are needed."""

    choice: Mapping[str, Any]
    sections: Mapping[str, Mapping[str, Any]]
    budget: BudgetScope | None

    def config(self, **changes: Mapping[str, Any]) -> Config:
        """The configuration, with some sections changed."""
        tables: dict[str, Any] = {"scheme": self.choice}
        for table in (_SECTIONS, self.sections, changes):
            for name, section in table.items():
                tables[name] = {**tables.get(name, {}), **section}
        return parse(tables)

    def fresh(self, **changes: Mapping[str, Any]) -> Setup:
        """A setup with a scheme of its own; model and sub-models are tried the first time."""
        config = self.config(**changes)
        has_ranks = config.model.factorised or config.model.adapters is not None
        axes = None if has_ranks else _axes()
        place = json.dumps(changes, sort_keys=True, default=str)
        setup = prepare(config, _net(), _data(), axes, findings=self._findings.get(place))
        self._findings[place] = ModelFindings(setup.axes, selects_logits=False, is_empty=False)
        return setup

    @cached_property
    def _findings(self) -> dict[str, ModelFindings]:
        """What was found with every change of the configuration."""
        return {}

    @cached_property
    def setup(self) -> Setup:
        """The setup whose scheme is asked."""
        return self.fresh()

    @cached_property
    def engine(self) -> OneByOne:
        """For every setup of the bench: they differ in what an engine does not look at."""
        return OneByOne(self.setup)

    @cached_property
    def backwards(self) -> OneByOne:
        """Likewise, in the opposite order."""
        return OneByOne(self.setup, backwards=True)

    @property
    def scheme(self) -> Scheme:
        """The scheme that is asked."""
        return self.setup.scheme

    @cached_property
    def later(self) -> State:
        """The model after some rounds, when a scheme that adapts has done so."""
        return run_bench(self.fresh(), self.engine)

    @cached_property
    def whole(self) -> dict[str, Any] | None:
        """The clients of a run at capacity 1, if the scheme is defined for one."""
        for clients in ({"capacities": [1]}, {"capacities": [1], "per_round": 1}):
            try:
                self.fresh(clients={**clients, "proportions": None})
            except ConfigError:
                continue
            return {**clients, "proportions": None}
        return None


def run_bench(setup: Setup, engine: OneByOne, rounds: int = ROUNDS, memory: bool = True) -> State:
    """Some rounds from the start; ``memory`` keeps what scheme and server remember."""
    state = initial_state(setup)
    for _ in range(rounds):
        state, _ = step(setup, state, engine, costs_of(setup.module))
    return state if memory else replace(state, memory={})


def bits(state: State) -> dict[str, bytes]:
    """Model and memory, byte by byte."""
    parts: dict[str, Tensor] = {
        **state.tensors,
        **{f"memory {n}": t for n, t in state.memory.items()},
    }
    return {name: tensor.detach().numpy().tobytes() for name, tensor in parts.items()}


def require_same(one: State, two: State, reason: str) -> None:
    """Require equal bits."""
    bits_of_one, bits_of_two = bits(one), bits(two)
    names = sorted(bits_of_one.keys() | bits_of_two.keys())
    differ = [name for name in names if bits_of_one.get(name) != bits_of_two.get(name)]
    require(not differ, f"{reason}: {', '.join(differ)}")


def require(condition: bool, reason: str) -> None:
    """An assertion that holds in optimised code too."""
    if not condition:
        raise AssertionError(reason)
