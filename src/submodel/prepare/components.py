"""Asking the components of a configuration what speaks against a run, before any of them is made.

Here are those that need to know neither model nor data, and the partition, which needs the data. A
model and an engine are asked when they are made, trackers when a run begins, and a scheme itself
says it of the axes (`submodel.prepare.parts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from submodel.algorithm.registry import PROJECTIONS, RULES, STEPS
from submodel.config import Config
from submodel.config.sections import TRACKERS
from submodel.data import Dataset
from submodel.data.registry import PARTITIONS, SOURCES
from submodel.errors import ConfigError
from submodel.local.registry import OPTIMISERS, SCHEDULES
from submodel.options import Section
from submodel.plugins import Kind
from submodel.prepare.parts import partition_context, source_context
from submodel.tasks.registry import LOSSES, TASKS

Question = tuple[Kind[Any], str, Section, object]
"""A kind, the name of one of it, the section that names it, and what it would be made with."""


def component_problems(config: Config, own_data: bool, own_loss: bool) -> list[str]:
    """What components say of a run of which only the configuration is known, all at once.

    Args:
        config: the configuration.
        own_data: whether data is given in Python, so that no source is made.
        own_loss: whether a loss is.
    """
    problems = []
    for question in _questions(config, own_data, own_loss):
        problems += _ask(*question)
    for name in config.train.trackers:
        try:
            TRACKERS.find(name)  # its code loads, before anything is written
        except ConfigError as error:
            problems += error.problems
    return problems


def partition_problems(config: Config, data: Dataset) -> list[str]:
    """What the partition says of the data; nothing where devices bring data of their own."""
    if config.engine.name == "flower":
        return []
    return _ask(PARTITIONS, config.data.partition, config.data, partition_context(config, data))


def _questions(config: Config, own_data: bool, own_loss: bool) -> Iterator[Question]:
    if not own_data:
        yield SOURCES, config.data.name, config.data, source_context(config)
    yield TASKS, config.task.name, config.task, None
    if not own_loss and config.task.loss is not None:
        yield LOSSES, config.task.loss, config.task, None
    yield OPTIMISERS, config.local.optimiser, config.local, None
    yield SCHEDULES, config.local.schedule, config.local, config.train.rounds
    yield RULES, config.merge.rule, config.merge, None
    yield PROJECTIONS, config.merge.projection, config.merge, None
    yield STEPS, config.server.name, config.server, None


def _ask(kind: Kind[Any], name: str, section: Section, context: object) -> list[str]:
    """What one component says, or why it cannot be asked."""
    try:
        return kind.find(name).problems(section, context)
    except ConfigError as error:
        return list(error.problems)
