"""Records of the runs of an arm: small files from which every figure can be redrawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from pathlib import Path, PurePath
from statistics import fmean
from typing import Annotated, Any

from pydantic import AfterValidator, Field, TypeAdapter

from submodel.config import Config
from submodel.core.errors import SubmodelError
from submodel.core.files import JsonNumber, read_typed, write_text
from submodel.runs.folder import RunFolder, read_full_scores
from submodel.runs.metrics import TEST_BATCH_KEY, Metrics, flat

_TABLES = ("capacity_accuracy.", "client_accuracy.mean", "client_accuracy.worst_quarter")
CAPACITY_KEY = "capacity_accuracy."
"""Prefix of the keys that hold the accuracy of a capacity."""
_COSTS = ("round", "bytes", "flops")
_SUMS = ("bytes", "flops")


_SCORE_KEYS = ("round", "test_loss", "test_accuracy", "train_eval_loss", "train_eval_accuracy",
               "held_out_loss", "held_out_accuracy", TEST_BATCH_KEY)  # fmt: skip


def _counts(line: dict[str, JsonNumber]) -> dict[str, JsonNumber]:
    """Refuse impossible costs."""
    if not all(0 <= line.get(cost, 0) < _MOST for cost in _COSTS):
        raise ValueError(f"{', '.join(_COSTS)}: not amounts")
    return line


_MOST = 10**30  # bound on every number
_Number = Annotated[int, Field(gt=-_MOST, lt=_MOST)] | float
Line = Annotated[dict[str, _Number], AfterValidator(_counts)]
BY_TEST_BATCH = "accuracy by test batches"
"""Measure: accuracy of the whole model with batch statistics of each test batch."""
MEASURES: dict[str, Callable[[Line], float]] = {
    "accuracy": lambda line: line["test_accuracy"],
    BY_TEST_BATCH: lambda line: line[TEST_BATCH_KEY],
    "loss": lambda line: line["test_loss"],
    "train accuracy": lambda line: line["train_eval_accuracy"],
    "train loss": lambda line: line["train_eval_loss"],
    "loss gap": lambda line: abs(line["test_loss"] - line["train_eval_loss"]),
    "accuracy gap": lambda line: abs(line["test_accuracy"] - line["train_eval_accuracy"]),
    "held-out accuracy": lambda line: line["held_out_accuracy"],
    "mean over sizes": lambda line: fmean(_by_size(line)),
    "smallest size": lambda line: _by_size(line)[-1],
    "worst quarter": lambda line: line["client_accuracy.worst_quarter"],
}
SMALLER_IS_BETTER = ("loss", "train loss", "loss gap", "accuracy gap")
COMPARISON_FILE = "comparison.json"
"""File beside the records of a comparison that lists its arms."""
RATES_ENDING = ".rates.json"
"""Ending of the names of tables of learning rates."""
_LARGEST = 1 << 27  # bytes of a record


@dataclass(frozen=True)
class SeedRun:
    """The evaluated rounds of one run."""

    seed: int
    lines: Annotated[Sequence[Line], Field(min_length=1)]  # older records lack bytes and flops
    seconds: float
    model_sha256: str
    is_flat: bool | None = None  # whether the curve of a run to convergence was flat
    clients: Sequence[tuple[float, float]] = field(default_factory=list)  # capacity, accuracy
    core_seconds: float | None = None  # processor time, scoring included; None: not measured
    machine: str | None = None  # machine that measured it


@dataclass(frozen=True)
class ArmRecord:
    """The runs of one arm, which differ only in their seeds."""

    slug: Annotated[str, Field(max_length=200)]
    config: dict[str, Any]  # of the first seed
    runs: Annotated[Sequence[SeedRun], Field(min_length=1)]

    @classmethod
    def of(cls, slug: str, folders: Sequence[RunFolder]) -> ArmRecord:
        """Read finished runs, seed by seed."""
        runs = []
        for folder in folders:
            summary, config = folder.summary(), folder.config()
            if summary is None:
                raise SubmodelError(f"{folder.path} is not finished")
            rows = rows_with_costs(folder.metrics())
            lines = [
                _scores_of(row) | {"bytes": row["bytes"], "flops": row["flops"]}
                for row in rows
                if "test_loss" in row
            ]
            sha = summary["model_sha256"]
            clients: list[tuple[float, float]] = []
            if (full_scores := read_full_scores(folder)) is not None:
                lines[-1] |= _scores_of(flat(full_scores.entries))
                clients = [(capacity, _short(score)) for capacity, score in full_scores.clients]
            runs.append(SeedRun(config.seed, lines, summary["seconds"], sha, clients=clients))
        return cls(slug, portable(folders[0].config()), runs)

    @classmethod
    def read(cls, path: Path) -> ArmRecord:
        """Read a record that `write` wrote."""
        return read_typed(_RECORD, path, _LARGEST, "not a record of runs")

    def write(self, path: Path) -> None:
        """Write the record as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _compact(asdict(self)))

    def final(self, measure: str) -> dict[int, float]:
        """Map each seed to a measure or cost (round, bytes, flops) after the last round."""
        return {run.seed: self._value_of(measure, run.lines[-1]) for run in self.runs}

    def _value_of(self, measure: str, line: Line) -> float:
        try:
            return MEASURES.get(measure, itemgetter(measure))(line)
        except KeyError as missing:
            raise SubmodelError(f"{self.slug}: its record has no {missing} in a round") from None

    def until(self, round_: int) -> ArmRecord:
        """Truncate the record after a round; runs without an evaluation until then are dropped."""
        runs = [replace(run, lines=[ln for ln in run.lines if ln["round"] <= round_])
                for run in self.runs]  # fmt: skip
        return replace(self, runs=[run for run in runs if run.lines])

    def ahead_of(self, other: ArmRecord, measure: str) -> list[float]:
        """Compute the advantage over another record for each common seed; less loss is better."""
        sign = -1 if measure in SMALLER_IS_BETTER else 1
        first, second = self.final(measure), other.final(measure)
        return [sign * (first[seed] - second[seed]) for seed in first if seed in second]

    def against(self, cost: str, measure: str) -> list[tuple[list[float], list[float]]]:
        """Return for every run its costs so far (round, bytes or flops) and its measures."""
        return [
            (
                [self._value_of(cost, line) for line in run.lines],
                [self._value_of(measure, line) for line in run.lines],
            )
            for run in self.runs
        ]

    def curve(self, measure: str) -> tuple[list[float], list[list[float]]]:
        """Return the evaluated rounds and the values of each run."""
        curves = self.against("round", measure)
        return curves[0][0], [values for _, values in curves]


VariantRecord = ArmRecord  # former name
_RECORD = TypeAdapter(ArmRecord)


def record_files(folder: Path) -> list[Path]:
    """List the files of a folder that may be records, without other JSON files beside them."""
    beside = (COMPARISON_FILE, f"*{RATES_ENDING}", ".*")
    files = sorted(folder.glob("*.json"))
    return [file for file in files if not any(file.match(pattern) for pattern in beside)]


def rows_with_costs(history: Sequence[Metrics]) -> list[Metrics]:
    """Flatten the lines of a run, with cumulative bytes, FLOPs and seconds.

    >>> line = {"bytes_down": 1, "bytes_up": 2, "flops": 5, "seconds": {"train": 1.5}}
    >>> rows = rows_with_costs([{"round": 1, **line}, {"round": 2, **line}])
    >>> rows[1]["bytes"], rows[1]["flops"], rows[1]["seconds"], rows[1]["seconds.train"]
    (6, 10, 3.0, 1.5)
    """
    traffic = accumulate(line["bytes_down"] + line["bytes_up"] for line in history)
    work = accumulate(line["flops"] for line in history)
    seconds = accumulate(sum(line["seconds"].values()) for line in history)
    return [
        {**flat(line), "bytes": bytes_, "flops": flops, "seconds": time}
        for line, bytes_, flops, time in zip(history, traffic, work, seconds, strict=True)
    ]


def _scores_of(row: Metrics) -> Line:
    """Select the scores of a flat row that a record keeps."""
    keys = (key for key in row if key in _SCORE_KEYS or key.startswith(_TABLES))
    return {key: _short(row[key]) for key in keys}


def _by_size(line: Line) -> list[float]:
    """List the accuracies of all capacities, from the largest capacity to the smallest."""
    sizes = {float(k.removeprefix(CAPACITY_KEY)): v for k, v in line.items() if CAPACITY_KEY in k}
    if not sizes:
        raise KeyError(f"{CAPACITY_KEY}*")
    return [sizes[size] for size in sorted(sizes, reverse=True)]


def portable(config: Config) -> dict[str, Any]:
    """Convert a configuration to plain values without folders of the machine.

    >>> from submodel.config import parse
    >>> portable(parse({"data": {"name": "mnist", "path": "/home/me/mnist"}}))["data"]["path"]
    'mnist'
    """
    plain: dict[str, Any] = config.model_dump(mode="json", exclude_none=True)
    return {key: _without_folders(value) for key, value in plain.items()}


def _without_folders(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner) for inner in value]
    is_path = isinstance(value, str) and PurePath(value).is_absolute()
    return PurePath(value).name if is_path else value


def _compact(plain: dict[str, Any]) -> str:
    """Format a record as JSON with one line per evaluated round: short, with readable diffs."""
    heading = json.dumps({key: value for key, value in plain.items() if key != "runs"}, indent=1)
    runs = ",\n".join(_compact_run(run) for run in plain["runs"])
    return f'{heading[:-2]},\n "runs": [\n{runs}\n ]\n}}\n'


def _compact_run(run: dict[str, Any]) -> str:
    others = json.dumps({key: value for key, value in run.items() if key != "lines"})
    lines = ",\n".join(f"   {json.dumps(line)}" for line in run["lines"])
    return f'  {others[:-1]}, "lines": [\n{lines}\n  ]}}'


def _short(value: float) -> float:
    """Round a score to seven digits, the precision of float32; counts are unchanged.

    >>> _short(1 / 3), _short(12345678901)
    (0.3333333, 12345678901)
    """
    return float(f"{value:.7g}") if isinstance(value, float) else value


def put_together(slug: str, records: Mapping[float, ArmRecord]) -> ArmRecord:
    """Join the records of an arm that has one run per capacity, for the seeds common to all.

    The scores are those of the largest capacity; bytes and FLOPs are sums over all. The accuracy of
    each capacity is that of its own run. There is a line for every round in which any of the runs
    was evaluated, with the last evaluation of each run until then.
    """
    largest = records[max(records)]
    runs_by_seed = {
        capacity: {run.seed: run for run in record.runs} for capacity, record in records.items()
    }
    seeds = [run.seed for run in largest.runs if all(run.seed in r for r in runs_by_seed.values())]
    runs = [_join_runs({c: by_seed[seed] for c, by_seed in runs_by_seed.items()}) for seed in seeds]
    return ArmRecord(slug, largest.config, runs)


def _join_runs(runs: Mapping[float, SeedRun]) -> SeedRun:
    from submodel.algorithm.evaluation import worst_quarter  # imports PyTorch

    largest = runs[max(runs)]
    first = max(run.lines[0]["round"] for run in runs.values())
    rounds = sorted({line["round"] for run in runs.values() for line in run.lines})
    lines = []
    for round_ in rounds[rounds.index(first) :]:
        until = {c: [ln for ln in run.lines if ln["round"] <= round_] for c, run in runs.items()}
        lines.append(_join_lines({c: earlier[-1] for c, earlier in until.items()}, round_))
    clients = [pair for c, run in runs.items() for pair in run.clients if pair[0] == c]
    if clients:
        accuracies = [accuracy for _, accuracy in clients]
        lines[-1]["client_accuracy.mean"] = sum(accuracies) / len(accuracies)
        lines[-1]["client_accuracy.worst_quarter"] = worst_quarter(accuracies, True)
    efforts = [run.core_seconds for run in runs.values()]
    flat_parts = [run.is_flat for run in runs.values()]
    return replace(
        largest,
        lines=lines,
        seconds=sum(run.seconds for run in runs.values()),
        core_seconds=None if None in efforts else sum(filter(None, efforts)),
        is_flat=None if None in flat_parts else all(flat_parts),
        clients=clients,
    )


def _join_lines(lines: Mapping[float, Line], round_: float) -> Line:
    largest = lines[max(lines)]
    others = {k: v for k, v in largest.items() if not k.startswith((CAPACITY_KEY, "client_"))}
    return {
        **others,
        "round": round_,
        **{key: sum(line[key] for line in lines.values()) for key in _SUMS if key in largest},
        **{f"{CAPACITY_KEY}{c:g}": lines[c]["test_accuracy"] for c in sorted(lines, reverse=True)},
    }
