"""Initial weights from a file: safetensors of this library, or as `transformers` saves them."""

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
    """The tensors of a file or folder: a run, an export or the result of `save_pretrained`."""
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
    """The files named by an index, which must be in the same folder."""
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        if any(Path(name).name != name for name in names):
            raise ValueError("it names files in other folders")
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"model.weights: {index}: cannot be read ({error})") from None
    return [index.parent / name for name in sorted(names)]


@torch.no_grad()
def load_weights(module: nn.Module, path: Path) -> None:
    """Load weights from a file into a module; raise `ConfigError` unless names and shapes agree."""
    own_tensors = module.state_dict(keep_vars=True)  # a shared tensor under each of its names
    tensors = _with_names_of(module, read_weights(path), own_tensors)
    loaded_ids = {id(own_tensors[name]) for name in tensors if name in own_tensors}
    missing_names = [
        name
        for name, tensor in own_tensors.items()
        if tensor.is_floating_point() and id(tensor) not in loaded_ids
    ]
    extra_names = [name for name in tensors if name not in own_tensors]
    shapes = [
        f"{name} is {tuple(tensor.shape)} in the file, here {tuple(own_tensors[name].shape)}"
        for name, tensor in tensors.items()
        if name in own_tensors and tensor.shape != own_tensors[name].shape
    ]
    problems = [
        f"model.weights: {path}: {what}: {_shortened_list(names)}"
        for what, names in (
            ("tensors of the model are missing", missing_names),
            ("the model has no such tensors", extra_names),
            ("tensors have different shapes", shapes),
        )
        if names
    ]
    refuse(problems)
    for name, tensor in tensors.items():
        own_tensors[name].copy_(tensor)


def _with_names_of(
    module: nn.Module, tensors: Mapping[str, Tensor], own_tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Rename tensors to the module's names, which may have or lack the prefix of a base model."""
    prefix = f"{getattr(module, 'base_model_prefix', '') or ''}."
    patterns = getattr(module, "_keys_to_ignore_on_load_unexpected", None) or ()
    renamed_tensors = {}
    for name, tensor in tensors.items():
        names = [name, prefix + name, name.removeprefix(prefix)]
        own_name = next((other for other in names if other in own_tensors), None)
        if own_name is None and any(re.search(pattern, name) for pattern in patterns):
            continue  # such as masks that older versions of transformers saved
        renamed_tensors[own_name or name] = tensor
    return renamed_tensors


def _shortened_list(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
