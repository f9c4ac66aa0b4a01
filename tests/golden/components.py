"""Small runs with every component of a configuration, with the scores of their last round.

`write_files` writes their data from a seed; nothing is fetched.
"""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from submodel.algorithm.builtin_rules import PROJECTIONS, RULES, STEPS
from submodel.config import Config
from submodel.core.registry import Registry
from submodel.data.builtin_data import AUGMENTATIONS, PARTITIONS, SOURCES, TOKENS
from submodel.model.builtin_models import MODELS
from submodel.schemes.builtin_schemes import SCHEMES
from submodel.tasks.builtin_tasks import LOSSES, METRICS, OPTIMISERS, SCHEDULES, TASKS
from tests.support.schemes import VARIANTS, Sections, joined

_WORDS = ["time", "night", "day", "love", "heart", "eye", "world", "sweet", "fair", "thou", "thy"]
_SPECIALS = ["[UNK]", " ", "\n"]


def write_files(folder: Path) -> None:
    """Write the text, tables, pictures and tokeniser of the cases, always the same."""
    draw = random.Random(0)
    texts = [_text(draw) for _ in range(5)]
    (folder / "text.txt").write_text("\n".join(texts), "utf-8")
    (folder / "texts").mkdir()
    for number, text in enumerate(texts):
        (folder / "texts" / f"{number}.txt").write_text(text, "utf-8")
    _write_csv(folder / "texts.csv", ["who", "said"], [[n % 3, t] for n, t in enumerate(texts)])
    _write_tables(folder, draw)
    _write_pictures(folder / "pictures", draw)
    vocabulary = {word: number for number, word in enumerate(_SPECIALS + _WORDS)}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    unused = ("normalizer", "truncation", "padding", "post_processor", "decoder")
    tokeniser: dict[str, Any] = {
        "version": "1.0",
        "model": model,
        "pre_tokenizer": {"type": "Whitespace"},
        "added_tokens": [],
        **dict.fromkeys(unused),
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokeniser), "utf-8")


def _text(draw: random.Random) -> str:
    return "\n".join(" ".join(draw.choices(_WORDS, k=7)).capitalize() for _ in range(12))


def _write_csv(path: Path, head: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def _write_tables(folder: Path, draw: random.Random) -> None:
    """Write two numbers and a word, which determine a number and a word; some cells are empty."""
    head = ["size", "age", "colour", "town", "price", "grade"]
    rows: list[list[Any]] = []
    for _ in range(60):
        size, age = draw.gauss(5, 2), draw.randrange(40)
        colour, town = draw.choice(["red", "green", "blue"]), draw.choice("abcdef")
        price = 3 * size - age / 10 + len(colour) + draw.gauss(0, 0.3)
        grade = "high" if price > 20 else "middle" if price > 14 else "low"
        rows.append([round(size, 3), age, colour, town, round(price, 3), grade])
    _write_csv(folder / "table.csv", head, rows)
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    pq.write_table(pa.table(columns, names=head), folder / "table.parquet")
    for row, place in ((3, 0), (7, 2), (11, 0), (20, 1), (31, 2)):
        rows[row][place] = ""
    _write_csv(folder / "gaps.csv", head, rows)


def _write_pictures(folder: Path, draw: random.Random) -> None:
    for label in range(3):
        (folder / str(label)).mkdir(parents=True)
        for number in range(8):
            pixels = bytes(40 * label + draw.randrange(100) for _ in range(8 * 8 * 3))
            picture = np.frombuffer(pixels, dtype=np.uint8).reshape(8, 8, 3)
            Image.fromarray(picture).save(folder / str(label) / f"{number}.png")


_FEW: Sections = {
    "clients": {"count": 4, "per_round": 3, "capacities": [1, 0.5]},
    "train": {"rounds": 2, "evaluate_every": 2},
    "engine": {"name": "local", "batching": "never", "device": "cpu"},
}
_DIGITS: Sections = joined(
    _FEW, {"model": {"name": "cnn", "width": 4}, "data": {"examples": 60, "test_examples": 20}}
)
_MLP: Sections = joined(_DIGITS, {"model": {"name": "mlp", "width": 8}})
_RESNET: Sections = joined(
    _DIGITS,
    {"model": {"name": "preresnet18", "width": 2}, "local": {"lr": 0.002}},
)  # at larger rates, norms of narrow stages over small batches multiply rounding
_TEXT: Sections = joined(
    _FEW,
    {
        "model": {"name": "gpt", "width": 8, "layers": 2, "heads": 2},
        "data": {"name": "text:text.txt", "length": 8, "examples": 40, "test_examples": 10},
    },
)
_TABLE: Sections = joined(
    _FEW,
    {"model": {"name": "mlp", "width": 8}, "data": {"name": "csv:table.csv", "target": "price"}},
)
_GRADES: Sections = joined(_TABLE, {"data": {"target": "grade"}})
_NATURAL: Sections = {"data": {"partition": "natural"}, "clients": {"count": None}}
_EVERY_SCORE: Sections = {
    "data": {"held_out": 0.2},
    "train": {"evaluate_train": True, "evaluate_clients": "submodel"},
}
_OF_CLASSES = {"task": {"metrics": ["accuracy", "top5", "f1", "calibration"]}}
_OF_TEXT = {"task": {"metrics": ["accuracy", "perplexity", "bits_per_byte"]}}
_OF_NUMBERS = {"task": {"metrics": ["mae", "r2"]}}
_ALWAYS: Sections = {"engine": {"batching": "always"}}
_LORA: Sections = {"model": {"adapters": "lora", "adapter_rank": 2}}

_KEPT_STATE: Sections = {"local": {"optimiser_state": "kept"}}

SCORED: dict[str, Sections] = {
    # data and tasks
    "every score of classes": joined(_DIGITS, _OF_CLASSES, _EVERY_SCORE),
    "clients by the global model": joined(_MLP, {"train": {"evaluate_clients": "global"}}),
    "classes, stacked": joined(_DIGITS, _OF_CLASSES, _EVERY_SCORE, _ALWAYS),
    "classification": joined(_DIGITS, {"task": {"name": "classification"}}),
    "label smoothing": joined(_DIGITS, {"task": {"label_smoothing": 0.1}}),
    "cross-entropy": joined(_MLP, {"task": {"loss": "cross-entropy"}}),
    "pictures": joined(
        _FEW,
        {"model": {"name": "cnn", "width": 4}, "data": {"name": "folder:pictures"}},
    ),
    "preresnet34": joined(_RESNET, {"model": {"name": "preresnet34"}}),
    "statistics of test batches": joined(_RESNET, {"train": {"statistics": "test_batch"}}),
    "statistics of some examples": joined(
        _RESNET, {"model": {"scaler": True}, "train": {"statistics_examples": 20}}
    ),
    "bytes": joined(_TEXT, _OF_TEXT, {"data": {"held_out": 0.2}}),
    "bytes, stacked": joined(_TEXT, _OF_TEXT, _ALWAYS),
    "language": joined(_TEXT, {"task": {"name": "language", "label_smoothing": 0.1}}),
    "characters": joined(_TEXT, _OF_TEXT, {"data": {"tokens": "characters"}}),
    "bpe": joined(_TEXT, _OF_TEXT, {"data": {"tokens": "bpe", "vocabulary": 280}}),
    "tokens of a file": joined(
        _TEXT, {"data": {"tokens": "file:tokenizer.json", "test_examples": 5}}
    ),
    "texts of clients": joined(
        _TEXT,
        _NATURAL,
        {"data": {"name": "text:texts"}, "train": {"evaluate_clients": "submodel"}},
    ),
    "texts of a column": joined(
        _TEXT, _NATURAL, {"data": {"name": "text:texts.csv", "column": "said", "client": "who"}}
    ),
    "gpt in single weights": joined(_TEXT, {"scheme": {"granularity": "coordinate"}}),
    "gpt in bfloat16": joined(_TEXT, {"local": {"precision": "bfloat16"}}),
    **{f"gpt, {name}": joined(_TEXT, sections) for name, sections in VARIANTS.items()},
    **{f"numbers, {name}": joined(_TABLE, sections) for name, sections in VARIANTS.items()},
    "gpt with dropout": joined(_TEXT, {"model": {"dropout": 0.1}}),
    "gpt with adapters": joined(_TEXT, _LORA, {"model": {"adapter_dropout": 0.1}}),
    "gpt, factorised": joined(_TEXT, {"model": {"factorised": True, "rank_share": 0.5}}),
    "regression": joined(
        _TABLE,
        _OF_NUMBERS,
        {"task": {"name": "regression"}, "data": {"held_out": 0.2}},
        {"train": {"evaluate_train": True, "evaluate_train_examples": 20}},
    ),
    "regression, stacked": joined(_TABLE, _OF_NUMBERS, _ALWAYS),
    "as it stands": joined(_TABLE, {"data": {"standardise": False}, "local": {"lr": 0.001}}),
    "squared error": joined(_TABLE, {"task": {"loss": "squared-error"}}),
    "absolute error": joined(_TABLE, {"task": {"loss": "absolute-error"}}),
    "grades": joined(_GRADES, _OF_CLASSES),
    "parquet": joined(_TABLE, {"data": {"name": "parquet:table.parquet"}}),
    "columns": joined(_TABLE, {"data": {"columns": ["size", "colour"], "test_share": 0.3}}),
    "towns": joined(
        _TABLE, _NATURAL, {"data": {"client": "town"}, "train": {"evaluate_clients": "submodel"}}
    ),
    **{
        f"gaps: {rule}": joined(_TABLE, {"data": {"name": "csv:gaps.csv", "missing": rule}})
        for rule in ("mean", "category", "drop")
    },
    # partitions
    "iid": joined(_MLP, {"data": {"partition": "iid"}}),
    "labels": joined(_MLP, {"data": {"partition": "labels", "labels_per_client": 2}}),
    "shared examples": joined(_MLP, {"data": {"partition": "iid", "examples_per_client": 20}}),
    "dirichlet": joined(_MLP, {"data": {"partition": "dirichlet", "alpha": 1.0}}),
    "crop and flip": joined(_DIGITS, {"data": {"augment": ["crop", "flip"]}}),
    "crop": joined(_DIGITS, {"data": {"augment": ["crop"]}}),
    "flip, stacked": joined(_DIGITS, {"data": {"augment": ["flip"]}}, _ALWAYS),
    "who can hold enough": joined(_MLP, {"clients": {"least": 1.0}}),
    "proportions": joined(_MLP, {"clients": {"proportions": [1, 3], "per_round": 0.5}}),
    # the model
    "share": joined(_DIGITS, {"model": {"share": 0.5}}),
    "least of an axis": joined(_MLP, {"axes": {"least": {"1": 0.75}}}),
    "adapters with another alpha": joined(_MLP, _LORA, {"model": {"adapter_alpha": 3.0}}),
    # local work
    **{
        f"{name}{more}": joined(_MLP, {"local": {"optimiser": name, "lr": 0.01}}, sections)
        for name in ("sgd", "adam", "adamw", "adafactor")
        for more, sections in {"": {}, ", kept": _KEPT_STATE, ", stacked": _ALWAYS}.items()
    },  # adafactor keeps no state: refused
    "nesterov": joined(_MLP, {"local": {"nesterov": True, "momentum": 0.5}}),
    "adam with decay": joined(_MLP, {"local": {"optimiser": "adam", "weight_decay": 0.1,
                                               "beta1": 0.8, "beta2": 0.9, "eps": 1e-4}}),
    "adafactor with decay": joined(_MLP, {"local": {"optimiser": "adafactor", "weight_decay": 0.1,
                                                    "clip_threshold": 0.5}}),
    "constant": joined(_MLP, {"local": {"schedule": "constant"}}),
    "step": joined(_MLP, {"local": {"schedule": "step", "milestones": [1], "decay": 0.5}}),
    "cosine": joined(_MLP, {"local": {"schedule": "cosine"}}),
    "warm-up": joined(
        _MLP, {"local": {"warmup_rounds": 2, "warmup_steps": 1, "step_schedule": "cosine"}}
    ),
    "steps": joined(_MLP, {"local": {"steps": 3, "batch_size": 4, "drop_last": True}}),
    "epochs of whole batches": joined(_MLP, {"local": {"epochs": 2, "batch_size": 0}}),
    "accumulate": joined(_MLP, {"local": {"accumulate": 2}}),
    "proximal": joined(_MLP, {"local": {"proximal": 0.1, "clip": 0.5}}),
    "proximal, stacked": joined(_MLP, {"local": {"proximal": 0.1, "clip": 0.5}}, _ALWAYS),
    "absent labels left out": joined(_MLP, {"local": {"absent_labels": "leave_out"}}),
    # server
    "box": joined(_MLP, {"merge": {"projection": "box", "radius": 0.2}}),
    "ball": joined(_MLP, {"merge": {"projection": "ball", "radius": 2.0}}),
    "no projection": joined(_MLP, {"merge": {"projection": "none"}}),
    "by examples": joined(_TABLE, _NATURAL, {"data": {"client": "town"},
                                             "merge": {"weights": "examples"}}),
    "products": joined(_MLP, {"model": {"factorised": True}, "merge": {"rule": "products"}}),
    **{
        f"server {name}": joined(_MLP, {"server": {"name": name, "lr": 0.5}})
        for name in ("plain", "momentum", "adam", "yogi")
    },
    # the last rounds
    "finish": joined(_MLP, {"train": {"rounds": 4, "finish": 0.5, "evaluate_every": 4}}),
    "finish of text": joined(_TEXT, {"train": {"rounds": 4, "finish": 0.5, "evaluate_every": 4}}),
    "output step": joined(_MLP, {"train": {"output_step": 10.0}}),
}  # fmt: skip
TOLD: dict[str, Sections] = {
    "classes": joined(_MLP, _OF_CLASSES, _EVERY_SCORE, {"train": {"evaluate_every": 1}}),
    "text": joined(_TEXT, _OF_TEXT, {"train": {"evaluate_every": 1}}),
    "numbers": joined(_TABLE, _OF_NUMBERS, {"train": {"evaluate_every": 1}}),
}
"""Runs with a folder, of which every line of metrics is recorded."""
FITTED: dict[str, dict[str, Sections]] = {
    "search": {
        "cnn": joined(_DIGITS, {"data": {"held_out": 0.2}}),
        "gpt": joined(_TEXT, {"clients": {"per_round": 2}}),
    },
    "importance": {"mlp": _MLP, "numbers": _TABLE},
    "prefix": {"preresnet18": _RESNET},
    "scheme": {"mlp": joined(_MLP, {"scheme": {"name": "static"}})},
}
"""Runs by the choice of units for a fitted sub-model of capacity 1/2."""

KINDS: tuple[Registry[Any], ...] = (
    *(MODELS, SOURCES, TOKENS, PARTITIONS, AUGMENTATIONS, SCHEMES, TASKS, LOSSES, METRICS),
    *(OPTIMISERS, SCHEDULES, RULES, PROJECTIONS, STEPS),
)
"""Registries whose entries change the end of a run; every name needs a case."""
NOT_KEPT = {
    "data.name": {"cifar10", "cifar100", "mnist", "fashion-mnist", "hf", "shakespeare"},  # fetched
    "data.partition": {"flwr"},  # flwr-datasets takes seconds to load
}
"""Names without a case."""


def named(kind: Registry[Any], config: Config) -> set[str]:
    """Return the names of a registry in a configuration, without arguments after a colon."""
    section, _, key = kind.key.partition(".")
    value = getattr(getattr(config, section), key, None)
    names = [value] if isinstance(value, str) else value or []
    return {name.partition(":")[0] for name in names}
