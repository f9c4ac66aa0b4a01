"""Weights from a file, to begin with: safetensors of ours, or as `transformers` saves them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from submodel.core.errors import ConfigError, refuse

_FILE = "model.safetensors"
_MOST_SHOWN = 5


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, or of a folder: a run's, an export's or one of `save_pretrained`."""
    files = [path]
    if path.is_dir():
        index = path / f"{_FILE}.index.json"
        files = _listed_files(index) if index.is_file() else [path / _FILE]
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"model.weights: {file}: cannot be read ({error})") from None
    return tensors


def _listed_files(index: Path) -> list[Path]:
    """The files that an index names, all in its own folder."""
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        if any(Path(name).name != name for name in names):
            raise ValueError("it names files of other folders")
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"model.weights: {index}: cannot be read ({error})") from None
    return [index.parent / name for name in sorted(names)]


@torch.no_grad()
def load_weights(module: nn.Module, path: Path) -> None:
    """Give a module the weights of a file; raises `ConfigError` unless they are all its own."""
    slots = module.state_dict(keep_vars=True)  # a shared tensor under each of its names
    tensors = _with_names_of(module, read_weights(path), slots)
    loaded_ids = {id(slots[name]) for name in tensors if name in slots}
    missing_names = [
        name
        for name, slot in slots.items()
        if slot.is_floating_point() and id(slot) not in loaded_ids
    ]
    extra_names = [name for name in tensors if name not in slots]
    shapes = [
        f"{name} is {tuple(tensor.shape)} there and {tuple(slots[name].shape)} here"
        for name, tensor in tensors.items()
        if name in slots and tensor.shape != slots[name].shape
    ]
    problems = [
        f"model.weights: {path}: {what}: {_shortened_list(names)}"
        for what, names in (
            ("tensors of the model are missing", missing_names),
            ("the model has no such tensors", extra_names),
            ("tensors have another shape", shapes),
        )
        if names
    ]
    refuse(problems)
    for name, tensor in tensors.items():
        slots[name].copy_(tensor)


def _with_names_of(
    module: nn.Module, tensors: Mapping[str, Tensor], slots: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The tensors by the module's names, which may have the prefix of a base model or lack it."""
    prefix = f"{getattr(module, 'base_model_prefix', '') or ''}."
    patterns = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    renamed_tensors = {}
    for name, tensor in tensors.items():
        names = [name, prefix + name, name.removeprefix(prefix)]
        slot_name = next((other for other in names if other in slots), None)
        if slot_name is None and any(re.search(pattern, name) for pattern in patterns):
            continue  # such as masks that older versions of transformers saved
        renamed_tensors[slot_name or name] = tensor
    return renamed_tensors


def _shortened_list(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
