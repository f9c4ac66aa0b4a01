"""Checkpoints: a folder per saved round, complete or not there at all.

A checkpoint is written beside its final place, flushed to disk and renamed, which is atomic; the
one before it is kept. Its JSON part holds a hash of the tensors, so damage is found, and the
fingerprint of the configuration, so a foreign checkpoint is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from submodel.config import Config, to_toml
from submodel.errors import CheckpointError
from submodel.exchange import State

_KEPT = 2
_TENSORS, _MEMORY, _STATE = "model.safetensors", "memory.safetensors", "state.json"


def fingerprint(config: Config) -> str:
    """A hash of everything in a configuration that shapes the result."""
    return hashlib.sha256(to_toml(config).encode()).hexdigest()


def model_sha256(tensors: Mapping[str, Tensor]) -> str:
    """The hash of the tensors' names, types, shapes and bytes, in name order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def save(folder: Path, state: State, config: Config) -> Path:
    """Write the checkpoint of a state; returns its folder."""
    final = folder / f"round-{state.round:06d}"
    if final.exists():
        return final
    partial = folder / f".{final.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    files = {_TENSORS: state.tensors}
    meta = {
        "round": state.round,
        "config_sha256": fingerprint(config),
        "model_sha256": model_sha256(state.tensors),
    }
    if state.memory:
        files[_MEMORY] = state.memory
        meta["memory_sha256"] = model_sha256(state.memory)
    for name, tensors in files.items():
        save_file({n: t.contiguous() for n, t in tensors.items()}, partial / name)
    (partial / _STATE).write_text(json.dumps(meta, indent=2) + "\n")
    for path in (*(partial / name for name in files), partial / _STATE, partial):
        _flush(path)
    partial.rename(final)
    _flush(folder)
    for old in saved(folder)[_KEPT:]:
        shutil.rmtree(old)
    return final


def saved(folder: Path) -> list[Path]:
    """The checkpoints' folders, newest first."""
    return sorted(folder.glob("round-*"), reverse=True)


def read(path: Path, config: Config, like: State) -> State:
    """One checkpoint, checked; ``like`` gives the names and shapes that it must have."""
    try:
        meta = json.loads((path / _STATE).read_text())
        tensors = load_file(path / _TENSORS)
        memory = load_file(path / _MEMORY) if like.memory else {}
        round_, config_hash = meta["round"], meta["config_sha256"]
        hashes = meta["model_sha256"], meta["memory_sha256"] if like.memory else None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: damaged ({error})") from None
    if config_hash != fingerprint(config):
        raise CheckpointError(f"{path}: belongs to a run with another config.toml")
    for found, expected in ((tensors, like.tensors), (memory, like.memory)):
        if {n: t.shape for n, t in found.items()} != {n: t.shape for n, t in expected.items()}:
            raise CheckpointError(f"{path}: its tensors are not those of this model")
    if hashes != (model_sha256(tensors), model_sha256(memory) if memory else None):
        raise CheckpointError(f"{path}: damaged (the tensors do not match their hash)")
    return State(round_, {n: tensors[n] for n in like.tensors}, {n: memory[n] for n in like.memory})


def latest(folder: Path, config: Config, like: State) -> tuple[State, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with newer ones."""
    problems: list[str] = []
    for path in saved(folder):
        try:
            return read(path, config, like), problems
        except CheckpointError as error:
            problems.append(str(error))
    raise CheckpointError("\n".join([f"{folder}: no usable checkpoint", *problems]))
