"""Strategies for valid configurations of every kind, from the types of the keys."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic.fields import FieldInfo

from submodel.config import Config, DevicesSection, parse
from submodel.config.reading import section_class
from submodel.core.errors import ConfigError
from submodel.core.registry import Registry
from submodel.schemes.builtin_schemes import SCHEMES

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), TEXT, st.datetimes(), st.dates()
)
OPTIONS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
WORDS: dict[str, SearchStrategy[Any]] = {
    "clients.proportions": st.lists(st.floats(1e-300, 1e300), min_size=2, max_size=2),
    "name": st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,20}", fullmatch=True),
    "model.name": st.sampled_from(["mlp", "cnn", "preresnet18", "preresnet34", "own", "my.nets:x"]),
    "data.name": st.sampled_from(["digits", "cifar10", "cifar100", "own", "hf:x/y", "folder:a b"]),
    "scheme.name": st.sampled_from(SCHEMES.names()),
    "data.tokens": st.sampled_from(["bytes", "characters", "bpe", "file:a b", "my.tokens:X"]),
    "data.partition": st.sampled_from(["auto", "iid", "labels", "dirichlet", "natural"]),
    "data.augment": st.lists(st.sampled_from(["crop", "flip"]), max_size=2),
    "task.name": st.sampled_from(["auto", "classification", "language", "regression"]),
    "task.loss": st.sampled_from(["cross-entropy", "squared-error"]),
    "task.metrics": st.lists(st.sampled_from(["accuracy", "f1", "mae"]), max_size=2),
    "merge.rule": st.sampled_from(["selective", "fill_in", "products"]),
    "merge.projection": st.just("none"),
    "server.name": st.sampled_from(["plain", "momentum", "adam", "yogi"]),
    "local.optimiser": st.sampled_from(["sgd", "adam", "adamw", "adafactor"]),
    "local.schedule": st.sampled_from(["constant", "cosine"]),
    "engine.name": st.sampled_from(["auto", "local", "torchrun", "flower"]),
    "scheme.sequence": st.sampled_from([n for n in SCHEMES.names() if n != "masked-sgd"]),
}
# Settings that a key needs to have an effect, besides its component.
BESIDE: dict[str, dict[str, Any]] = {
    "model.rank_share": {"model.factorised": True},
    "model.scaler": {"model.factorised": False, "model.adapters": None},
    "model.factorised": {"model.adapters": None},
    **{f"model.adapter_{key}": {"model.adapters": "lora", "model.factorised": False}
       for key in ("rank", "alpha", "dropout", "layers")},
    "data.partitioner_options": {"data.partitioner": "X"},
    "clients.count": {"clients.per_round": 1},
    "clients.proportions": {"clients.capacities": [1, 0.5]},
    "clients.least": {"clients.capacities": [1]},
    "model.share": {"model.factorised": False, "model.adapters": None},
    "clients.per_round": {"clients.count": 10**12},
    "clients.groups": {"clients.sampling": "cyclic", "clients.count": 10**12,
                       "clients.per_round": 1},
    "local.decay": {"local.milestones": [3]},
    "local.nesterov": {"local.momentum": 0.5},
    **{f"devices.{key}": {"engine.name": "flower"} for key in DevicesSection.model_fields},
}  # fmt: skip


def keys() -> tuple[dict[str, FieldInfo], dict[str, dict[str, Any]]]:
    """Return every key of sections and components by path, with the settings that it needs."""
    found: dict[str, FieldInfo] = {}
    needs: dict[str, dict[str, Any]] = {}
    for name, field in Config.model_fields.items():
        section = section_class(name)
        if section is None:
            found[name] = field
            continue
        found |= {f"{name}.{key}": leaf for key, leaf in section.model_fields.items()}
        waiting: list[tuple[str, Registry[Any], dict[str, Any]]]
        waiting = [(choice, kind, {}) for choice, kind in section.choices.items()]
        while waiting:
            choice, kind, with_it = waiting.pop()
            for title in kind.entries:
                given = f"{title}:x/y" if title in kind.prefixes else title
                options = kind.find(given).options
                for key, leaf in options.model_fields.items():
                    path = f"{name}.{key}"
                    if path not in found:
                        found[path] = leaf
                        needs[path] = {**with_it, f"{name}.{choice}": given}
                waiting += [
                    (c, k, {**with_it, f"{name}.{choice}": given})
                    for c, k in options.choices.items()
                    if k not in section.choices.values()
                ]
    return found, {key: needs.get(key, {}) | BESIDE.get(key, {}) for key in found}


KEYS, COMPANIONS = keys()


def values(key: str) -> SearchStrategy[Any]:
    """Draw values for a key."""
    if key in WORDS:
        return WORDS[key]
    field = KEYS[key]
    return _values(field.annotation, field.metadata)


def _values(kind: Any, metadata: Sequence[Any]) -> SearchStrategy[Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        more = [m for a in inner[1:] for m in (a.metadata if isinstance(a, FieldInfo) else [a])]
        return _values(inner[0], [*metadata, *more])
    if origin in (Union, types.UnionType):
        return _values(next(a for a in inner if a is not type(None)), metadata)
    if origin is Literal:
        return st.sampled_from(inner)
    if origin is list:
        least = _bound(metadata, "min_length") or 0
        return st.lists(_values(inner[0], []), min_size=least, max_size=4)
    if origin is tuple:
        return st.tuples(*(_values(a, []) for a in inner))
    if origin is dict:
        return st.dictionaries(TEXT, _values(inner[1], []), max_size=3)
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(_bound(metadata, "ge") or 0, _most(metadata))
    if kind is float:
        return _numbers(metadata)
    return TEXT if kind is str else OPTIONS


def _numbers(metadata: Sequence[Any]) -> SearchStrategy[Any]:
    """Draw fractions and whole numbers, as a key for fractions also accepts whole numbers."""
    above, least = _bound(metadata, "gt"), _bound(metadata, "ge")
    below, most = _bound(metadata, "lt"), _bound(metadata, "le")
    low, high = above if least is None else least, below if most is None else most
    fractions = st.floats(low, high, exclude_min=least is None, exclude_max=below is not None,
                          allow_nan=False, allow_infinity=False)  # fmt: skip
    first = 0 if least is not None else 1
    last = 10**6 if high is None else int(high) - (below is not None)
    return fractions | st.integers(first, last) if first <= last else fractions


def _most(metadata: Sequence[Any]) -> int:
    most, below = _bound(metadata, "le"), _bound(metadata, "lt")
    return int(most if most is not None else below - 1)


def _bound(metadata: Sequence[Any], name: str) -> Any:
    found = [getattr(m, name) for m in metadata if getattr(m, name, None) is not None]
    return found[0] if found else None


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Convert values by path to tables."""
    found: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        (found.setdefault(section, {}) if section else found)[name] = value
    return found


@st.composite
def configurations(draw: st.DrawFn, key: str | None = None) -> Config:
    """Draw a valid configuration; with ``key``, one that sets it."""
    chosen = draw(st.lists(st.sampled_from(sorted(KEYS)), max_size=12, unique=True))
    flat = {name: draw(values(name)) for name in chosen}
    if key is not None:
        flat |= COMPANIONS.get(key, {}) | {key: draw(values(key))}
    firm = {} if key is None else {**COMPANIONS.get(key, {}), key: None}
    for _ in range(20):
        try:
            return parse(nested(flat))
        except ConfigError as error:  # contradicting keys: remove the drawn ones
            named = {p.partition(":")[0].partition("[")[0] for p in error.problems}
            sections = {name.partition(".")[0] for name in named}
            guilty = [n for n in flat if n in named and n not in firm]
            guilty = guilty or [n for n in flat if n.partition(".")[0] in sections - {""}
                                and n not in firm]  # fmt: skip
            if not guilty:
                break
            flat = {n: v for n, v in flat.items() if n not in guilty}
    return reject()  # a single value, as hypothesis rejects too many filtered ones
