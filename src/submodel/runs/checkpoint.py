"""Checkpoints: a folder per saved round, complete or absent.

A checkpoint is written under a temporary name, flushed to disk and renamed, which is atomic; the
previous one is kept. Its JSON part contains hashes of the tensors, which reveal damage, the
configuration and the fingerprints of data and module (key ``subject``). A checkpoint of another run
is refused, with the differences.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired

import tomli_w
import torch
from pydantic import ConfigDict, TypeAdapter
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from typing_extensions import TypedDict

from submodel.algorithm.dispatch import check_slots
from submodel.algorithm.types import State
from submodel.config import Config, override, parse, to_toml
from submodel.config.meaning import fingerprint, refusals
from submodel.config.reading import MOST_BYTES, read_toml, without_unused
from submodel.core.errors import CheckpointError, ConfigError, plain
from submodel.core.files import UnreadableError, flush, read_text, read_typed, write_text
from submodel.runs.data_record import Fingerprints, bytes_of, describe_differences

_FOLDERS_TO_KEEP = 2
_TENSORS, _MEMORY, _STATE = "model.safetensors", "memory.safetensors", "state.json"
_SLOTS = "optimisers.safetensors"
_MOST_STATE = 2**23  # bytes; a tenth of it describes two thousand layers
_NAME = re.compile(r"round-(\d{6,15})")


class DamagedError(CheckpointError):
    """A damaged checkpoint; an earlier one may be usable."""


def model_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash the names, types, shapes and bytes of tensors, in the order of names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        for piece in bytes_of(tensor):
            digest.update(piece)
    return digest.hexdigest()


def save(
    folder: Path, state: State, config: Config, fingerprints: Fingerprints | None = None
) -> Path:
    """Write the checkpoint of a state; return its folder."""
    final = folder / f"round-{state.round:06d}"
    if final.exists():
        return final
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    files = {_TENSORS: state.tensors}
    meta = {"round": state.round, "model_sha256": model_sha256(state.tensors)}
    if state.memory:
        files[_MEMORY] = state.memory
        meta["memory_sha256"] = model_sha256(state.memory)
    if state.client_slots:
        files[_SLOTS] = state.client_slots
        meta["optimisers_sha256"] = model_sha256(state.client_slots)
    for name, tensors in files.items():
        write_tensors(partial / name, tensors)
    (partial / _STATE).write_text(_state(meta, config, fingerprints), encoding="utf-8")
    for path in (*(partial / name for name in files), partial / _STATE, partial):
        flush(path)
    partial.rename(final)
    flush(folder)
    for old in checkpoint_folders(folder)[_FOLDERS_TO_KEEP:]:
        shutil.rmtree(old)
    return final


def checkpoint_folders(folder: Path) -> list[Path]:
    """List the folders of checkpoints, newest first."""
    matches = {path: _NAME.fullmatch(path.name) for path in folder.glob("round-*")}
    folders = [(int(match[1]), path) for path, match in matches.items() if match]
    return [path for _, path in sorted(folders, reverse=True)]


def saved_round(folder: Path) -> int:
    """Return the round of the newest checkpoint, damaged or not; 0 if there is none."""
    paths = checkpoint_folders(folder)
    return int(paths[0].name.partition("-")[2]) if paths else 0


def read_checkpoint(
    path: Path,
    config: Config,
    like: State,
    fingerprints: Fingerprints | None = None,
    *,
    into: bool = False,
) -> State:
    """Read and check one checkpoint; ``like`` gives the required names and shapes.

    ``into``: whether to overwrite the model of ``like``, so that a large model is in memory once.
    Raises `DamagedError` if it is damaged, `CheckpointError` if it belongs to another run.
    """
    meta = _meta(path)
    then = _config(path, meta, config)
    if problems := refusals(then, config, meta["round"]):
        raise CheckpointError(
            "\n".join([f"{path}: belongs to a run with another config.toml", *problems])
        )
    tensors = _load(path / _TENSORS, like.tensors, into)
    if any(tensor.dtype != like.tensors[name].dtype for name, tensor in tensors.items()):
        raise DamagedError(f"{path}: its tensors have other types than those of this model")
    memory = _load(path / _MEMORY, like.memory) if like.memory else {}
    hashes = model_sha256(tensors), model_sha256(memory) if memory else None
    if hashes != (meta["model_sha256"], meta.get("memory_sha256") if memory else None):
        raise DamagedError(f"{path}: damaged (the tensors do not match their hash)")
    slots: dict[str, Tensor] = {}
    if "optimisers_sha256" in meta:
        slots = _load_slots(path / _SLOTS, like.tensors)
        if model_sha256(slots) != meta["optimisers_sha256"]:
            raise DamagedError(f"{path}: damaged ({_SLOTS} does not match its hash)")
    check_fingerprints(path, meta.get("subject"), fingerprints or {})
    return State(meta["round"], tensors, memory, slots)


def latest(
    folder: Path,
    config: Config,
    like: State,
    fingerprints: Fingerprints | None = None,
    *,
    into: bool = False,
) -> tuple[State, list[str]]:
    """Read the newest undamaged checkpoint; remove newer ones, and return their problems.

    ``into`` is as for `read_checkpoint`. Raises `CheckpointError` if there is none, or if the
    newest belongs to another run.
    """
    damage: dict[Path, str] = {}
    for path in checkpoint_folders(folder):
        try:
            state = read_checkpoint(path, config, like, fingerprints, into=into)
        except DamagedError as error:
            damage[path] = str(error)
            continue
        for old in damage:
            shutil.rmtree(old, ignore_errors=True)  # its round will be saved again
        return state, list(damage.values())
    again = "restore one, or begin again: submodel train --force, or overwrite=True in Python"
    raise CheckpointError("\n".join([f"{folder}: no usable checkpoint", *damage.values(), again]))


def check_run(
    folder: Path, fingerprints: Fingerprints, recorded: Fingerprints | None = None
) -> None:
    """Raise `CheckpointError` if the model or the data of a run has other fingerprints.

    They are compared with the newest checkpoint, or without one with ``recorded``, those in the
    run's record.
    """
    if paths := checkpoint_folders(folder):
        check_fingerprints(paths[0], _meta(paths[0]).get("subject"), fingerprints)
    else:
        check_fingerprints(folder.parent, recorded, fingerprints)


def check_fingerprints(path: Path, then: Fingerprints | None, now: Fingerprints) -> None:
    """Raise `CheckpointError` if fingerprints differ; empty ones are not compared."""
    if then and now and (problems := describe_differences(then, now)):
        raise CheckpointError(
            "\n".join([f"{path}: belongs to a run with another model or other data", *problems])
        )


def renew(folder: Path, config: Config, fingerprints: Fingerprints) -> None:
    """Write configuration and fingerprints into checkpoints of earlier versions.

    Those contain only a hash of the run's config.toml, which may be about to change.
    """
    for path in checkpoint_folders(folder):
        try:
            meta = _meta(path)
            if _is_old(meta):
                then = _config(path, meta, config)
                write_text(path / _STATE, _state(meta, then, fingerprints))
        except CheckpointError:
            continue  # leave it unchanged


def _state(meta: Mapping[str, Any], config: Config, fingerprints: Fingerprints | None) -> str:

    content = {
        **meta,
        "config_sha256": fingerprint(config),
        "config": to_toml(config),
        "subject": dict(fingerprints or {}),
    }
    return json.dumps({**content, "state_sha256": _hash(content)}, indent=2) + "\n"


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _is_old(meta: Mapping[str, Any]) -> bool:
    """Whether an earlier version wrote it, which kept only a hash of config.toml."""
    return not {"state_sha256", "config", "subject"} & meta.keys()


class _Meta(TypedDict):
    """Keys of the JSON part that are read; there may be more."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    round: int
    config_sha256: str
    model_sha256: str
    config: NotRequired[str]
    subject: NotRequired[dict[str, str]]
    state_sha256: NotRequired[str]


_META: TypeAdapter[Any] = TypeAdapter(_Meta)


def _meta(path: Path) -> dict[str, Any]:
    """Read and check the JSON part of a checkpoint."""
    try:
        meta: dict[str, Any] = read_typed(_META, path / _STATE, _MOST_STATE)
        if not _is_old(meta):
            content = {key: value for key, value in meta.items() if key != "state_sha256"}
            if meta.get("state_sha256") != _hash(content):
                raise UnreadableError("it does not match its hash")
            if missing := {"config", "subject"} - meta.keys():
                raise UnreadableError(f"no {min(missing)}")
        name = _NAME.fullmatch(path.name)
        if name is None or int(name[1]) != meta["round"]:
            raise UnreadableError("of another round")
    except (UnreadableError, RecursionError) as error:
        raise DamagedError(f"{path}: damaged ({_STATE}: {error})") from None
    return meta


def _config(path: Path, meta: Mapping[str, Any], now: Config) -> Config:

    try:
        if not _is_old(meta):
            return parse(without_unused(read_toml(meta["config"])))
        if meta["config_sha256"] == _text_hash(to_toml(now)):
            return now
        values = read_toml(read_text(path.parent.parent / "config.toml", MOST_BYTES))
        # reading turned the number of clients into a float there
        spellings = values, override(values, [f"clients.per_round={now.clients.per_round}"])
        if meta["config_sha256"] in [_text_hash(tomli_w.dumps(v)) for v in spellings]:
            return parse(without_unused(values))
    except (ConfigError, UnreadableError) as error:
        raise CheckpointError(f"{path}: its config.toml cannot be read: {error}") from None
    raise CheckpointError(f"{path}: belongs to a run with another config.toml")


def _text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _load_slots(path: Path, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read the state of clients' optimisers and check it against the model."""
    try:
        slots = load_file(path)
    except Exception as error:  # any exception for a damaged file
        raise DamagedError(f"{path.parent}: damaged ({plain(error)})") from None
    if not check_slots(slots, like):
        raise DamagedError(f"{path.parent}: its optimisers are not those of this model")
    return slots


def _load(path: Path, like: Mapping[str, Tensor], into: bool = False) -> dict[str, Tensor]:
    """Read the tensors of a file that has the names and shapes of ``like``, or into those."""
    try:
        if not path.is_file():
            raise FileNotFoundError(f"{path.name} is missing")
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            if shapes == {name: tuple(tensor.shape) for name, tensor in like.items()}:
                if into and fill_tensors(path, like):
                    return dict(like)
                return {name: file.get_tensor(name) for name in like}
    except Exception as error:  # any exception for a damaged file
        raise DamagedError(f"{path.parent}: damaged ({plain(error)})") from None
    raise DamagedError(f"{path.parent}: its tensors are not those of this model")


_DTYPE_NAMES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of types in a file, in the order of the file: the widest first."""
_HEAD_MULTIPLE = 8  # alignment of the head, in bytes


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a file in the format of `safetensors`, without a second copy in memory."""
    order = list(_DTYPE_NAMES)
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    head, end = {}, 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        head[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _HEAD_MULTIPLE)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            if tensors[name].numel():
                file.writelines(bytes_of(tensors[name]))


def fill_tensors(path: Path, tensors: Mapping[str, Tensor]) -> bool:
    """Read a file of tensors into the memory of tensors with the same names and shapes.

    Returns False, and overwrites nothing, if types or layouts differ.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = json.loads(file.read(length))
        for name, tensor in tensors.items():
            is_plain = tensor.is_contiguous() and tensor.device.type == "cpu"
            if not is_plain or head[name]["dtype"] != _DTYPE_NAMES.get(tensor.dtype):
                return False
        for name, tensor in tensors.items():
            file.seek(8 + length + head[name]["data_offsets"][0])
            view, position = tensor.detach().view(-1).view(torch.uint8).numpy().data, 0
            while position < len(view):
                count = file.readinto(view[position:])
                if not count:
                    raise EOFError(f"{path.name} ends early")
                position += count
    return True
