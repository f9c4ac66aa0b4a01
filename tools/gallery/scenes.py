"""Scenes: four clients and two axes of 24 units, for 24 rounds, under each scheme."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from submodel.algorithm.types import Assignment, State
from submodel.config import parse
from submodel.config.setup import prepare
from submodel.model.axes import Axes
from submodel.model.cut import UnitCut
from submodel.report.holdings import HoldingsSource, source_of
from submodel.runs.callbacks import Callback
from submodel.runs.folder import RunFolder
from submodel.runs.holdings_file import ModelOutline
from submodel.runs.loop import run_rounds
from submodel.runs.training import Training
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.schemes.scheme import SchemeContext, sends_masks

ROUNDS = UNITS = 24
AXES = {"first": UNITS, "second": UNITS}
_STEPS = [10] * 8  # batches of a client's round
_FRACTIONS = {1.0: "1", 0.75: "3/4", 0.5: "1/2", 0.25: "1/4", 0.125: "1/8"}
FEW_WEIGHTS = 25  # every 25th weight is shown

Levels = NDArray[np.float64]
"""Level from 0 (not held) to 1 (held), rounds x units."""


@dataclass(frozen=True)
class Scene:
    """Settings of a picture of a scheme.

    Args:
        scheme: the section of the configuration.
        capacities: of the clients, one each.
        clients: titles of the clients; None: by capacity.
        rows: title of the vertical axis.
    """

    scheme: Mapping[str, Any]
    capacities: Sequence[float] = (1.0, 0.5, 0.25, 0.125)
    clients: Sequence[str] | None = None
    rows: str = "units"

    @property
    def name(self) -> str:
        """Name of the scheme."""
        return str(self.scheme["name"])


@dataclass(frozen=True)
class Played:
    """Cuts of all rounds of a scene.

    Args:
        scene: the scene.
        titles: titles of the clients.
        levels: levels of each client, by axis.
        joins: rounds, from 0, after which cells are joined.
    """

    scene: Scene
    titles: Sequence[str]
    levels: Mapping[str, Sequence[Levels]]
    joins: Sequence[int] = field(default=())


_QUARTERS = (0.25,) * 4
SCENES: dict[str, Scene] = {
    "full": Scene({"name": "full"}),
    "static": Scene({"name": "static"}),
    "rolling": Scene({"name": "rolling", "order": "sequential"}),
    "rolling-shuffled": Scene({"name": "rolling", "order": "shuffled"}),
    "random": Scene({"name": "random"}, (0.75, 0.5, 0.25, 0.125)),
    "dropout": Scene({"name": "dropout"}, (0.75, 0.5, 0.25, 0.125)),
    "unbiased": Scene(
        {"name": "unbiased"},
        (0.75, 0.5, 0.25, 0.125),
        [f"capacity {share}, \u00f7 {share}" for share in ("3/4", "1/2", "1/4", "1/8")],
    ),
    "ordered": Scene({"name": "ordered"}),
    "partition": Scene(
        {"name": "partition", "every": 3}, _QUARTERS, [f"client {k}: 1/4" for k in range(1, 5)]
    ),
    "hierarchical": Scene(
        {"name": "hierarchical", "cells": 2, "every": 6},
        (0.5,) * 4,
        [f"client {k}, cell {(k - 1) % 2 + 1}" for k in range(1, 5)],
    ),
    "importance": Scene({"name": "importance"}),
    "pruned": Scene(
        {"name": "pruned", "every": 4, "granularity": "coordinate"},
        (0.5,) * 4,
        ["every client: 1/2"],
        "weights",
    ),
    "masked-sgd": Scene(
        {"name": "masked-sgd", "sequence": "rolling", "order": "sequential"},
        (0.5,),
        ["the one machine: 1/2"],
    ),
}
"""Scenes by the names of their pictures."""
ANIMATIONS = ("static", "rolling", "random", "partition")


def play(scene: Scene) -> Played:
    """Compute the cuts of a scene, round by round.

    Args:
        scene: the scene.
    """
    config = parse(_sections(scene))
    if config.scheme.granularity == "coordinate":
        masks = _train(scene, config)[1]
        return Played(scene, scene.clients or (), {"weights": [np.stack(masks)]})
    scheme = SCHEMES.find(scene.name).make(config.scheme, SchemeContext(AXES, scene.capacities))
    outline = ModelOutline(AXES, ())
    source = HoldingsSource(config, outline, {}, ROUNDS, {})
    if sends_masks(scheme):
        source = _train(scene, config)[0]
    participants = {round_: source.participants(round_ + 1) for round_ in range(ROUNDS)}
    clients = sorted(
        participants[0], key=lambda participant: (-participant.capacity, participant.client)
    )
    levels = {
        axis: [
            np.stack(
                [
                    _levels(source, scheme, _same(participants[r], client), axis)
                    for r in range(ROUNDS)
                ]
            )
            for client in clients
        ]
        for axis in list(source.outline.axes)[:2]
    }
    titles = scene.clients or [f"capacity {_FRACTIONS[client.capacity]}" for client in clients]
    joins = [r for r in range(ROUNDS) if scheme.cells > 1 and scheme.joins(r)]
    return Played(scene, titles, levels, joins)


def _sections(scene: Scene) -> dict[str, Any]:
    count = len(scene.capacities)
    return {
        "scheme": dict(scene.scheme),
        "model": {"name": "mlp", "width": UNITS},
        "data": {"partition": "iid"},
        "clients": {
            "count": count,
            "per_round": count,
            "capacities": sorted(set(scene.capacities), reverse=True),
        },
        "local": {"lr": 0.1},
        "train": {"rounds": ROUNDS, "evaluate_every": ROUNDS, "checkpoint_every": ROUNDS},
    }


def _same(participants: Sequence[Assignment], client: Assignment) -> Assignment:
    return next(participant for participant in participants if participant.client == client.client)


def _levels(source: HoldingsSource, scheme: Any, participant: Assignment, axis: str) -> Levels:
    """Return the levels of a client on an axis; with nested widths, the share of its steps."""
    mask = source.unit_masks(participant).get(axis, np.ones(UNITS, np.bool_)).astype(np.float64)
    rule = scheme.step_rule(participant.capacity)
    if rule is None:
        return mask
    cut = UnitCut(Axes({axis: UNITS}, {}), {axis: np.flatnonzero(mask)})
    key = (source.config.seed, participant.round, participant.client)
    levels = np.zeros(UNITS)
    for width, examples in rule.plan_passes(cut, _STEPS, {}, key):
        inner = rule.cut(cut, width, {})
        assert isinstance(inner, UnitCut)
        levels[inner.units.get(axis, slice(None))] += examples / sum(_STEPS)
    return levels


class _Masks(Callback):
    """Record some weights of the mask in a scheme's memory, round by round."""

    def __init__(self) -> None:
        self.rows: list[Levels] = []

    def after_round(self, before: State, after: State, line: Any) -> None:  # noqa: ARG002
        """Record evenly spaced weights of the first hidden layer."""
        memory = after.recall("scheme")
        if "mask" in memory:
            self.rows.append(memory["mask"].numpy()[: UNITS * FEW_WEIGHTS : FEW_WEIGHTS] * 1.0)


def _train(scene: Scene, config: Any) -> tuple[HoldingsSource, list[Levels]]:
    """Train on the digits, for schemes that depend on the model."""
    masks = _Masks()
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder(Path(temporary) / scene.name)
        folder.create(config)
        run_rounds(Training(config, prepare(config)), folder, [masks])
        return source_of(folder.path), masks.rows
