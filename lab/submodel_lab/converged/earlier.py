"""Records of earlier runs: what is done, and whether it is the same that is asked for now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from submodel.config import differences, parse
from submodel.errors import ConfigError, SubmodelError
from submodel.experiments import SeedRun, VariantRecord, portable
from submodel_lab.converged.contenders import Contender
from submodel_lab.converged.rates import RateTable, is_extended, read_rates

_ELSEWHERE = ("seed", "data.path", "data.source")  # where the same data was found, and which run


def read_earlier(contender: Contender, records: Path) -> VariantRecord | None:
    """The runs that a contender has already; None where there are none.

    Raises `SubmodelError` where they were runs of something else.

    Args:
        contender: whose.
        records: the folder of records.
    """
    path = records / f"{contender.slug}.json"
    if not path.is_file():
        return None
    record = VariantRecord.read(path)
    table = read_earlier_rates(contender, records)
    if reason := _misfit(contender, record, None if table is None else table.best):
        raise SubmodelError(
            f"{path} is of another configuration ({reason}): give another folder, or take it away"
        )
    return record


def read_earlier_rates(contender: Contender, records: Path) -> RateTable | None:
    """The rates that were tried for a contender already; None where none were.

    Raises `SubmodelError` where it was another grid; it may be longer at its ends.

    Args:
        contender: whose.
        records: the folder of records.
    """
    table = read_rates(records, contender.slug)
    if table is None or not contender.rates:
        return None
    then = table.rounds, sorted(rate for rate, _ in table.scores)
    now = contender.tuning_rounds, sorted(contender.rates)
    if then[0] != now[0] or not is_extended(then[1], now[1]):
        raise SubmodelError(
            f"{records / f'{contender.slug}.rates.json'} is of another grid ({_grid(*then)} then, "
            f"{_grid(*now)} now): give another folder, or take it away"
        )
    return table


def _grid(rounds: int, rates: Sequence[float]) -> str:
    return f"{', '.join(f'{rate:g}' for rate in rates)} for {rounds} rounds"


def _misfit(contender: Contender, record: VariantRecord, rate: float | None) -> str:
    """Why a record is not one of this contender; empty if it is."""
    try:
        then = parse(record.config)
    except ConfigError as error:
        return error.problems[0]
    if rate is None and contender.rates:
        rate = then.local.lr  # whatever grid it came from
    now = parse(portable(contender.course.begin(contender.config_at(then.seed, rate))))
    for key, (old, new) in differences(contender.course.begin(then), now).items():
        if key not in _ELSEWHERE and not key.startswith("engine."):
            return f"{key}: {old} then, {new} now"
    if not contender.course.ends_with(then):
        return f"train.rounds: {then.train.rounds}, where no run of this course ends"
    return ""


def missing_seeds(contender: Contender, record: VariantRecord | None) -> list[int]:
    """The seeds that have not been run.

    Args:
        contender: whose.
        record: of its earlier runs.
    """
    seeds_there = set() if record is None else {run.seed for run in record.runs}
    return [seed for seed in contender.seeds if seed not in seeds_there]


def with_runs(record: VariantRecord | None, new: VariantRecord) -> VariantRecord:
    """Earlier and new runs of a contender in one record, in order of their seeds.

    Args:
        record: of earlier runs, if there are any.
        new: of new runs, which stand where a seed is in both.
    """
    runs: dict[int, SeedRun] = {} if record is None else {run.seed: run for run in record.runs}
    runs |= {run.seed: run for run in new.runs}
    config = new.config if record is None else record.config
    return replace(new, config=config, runs=[runs[seed] for seed in sorted(runs)])
