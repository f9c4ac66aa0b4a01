"""Fetched images kept as one file each, complete or not there, with a checksum; who may fetch.

They are under ``$SUBMODEL_DATA``, or ``~/.cache/submodel`` without it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from submodel.data.images import Images, ImageSet
from submodel.errors import DataError, plain
from submodel.files import UnreadableError, parse_typed

_NAMES = TypeAdapter(tuple[str, ...])
_TENSORS = ("train.pixels", "train.labels", "test.pixels", "test.labels")

_MAY_FETCH = ContextVar("may_fetch", default=True)


@contextmanager
def without_fetching() -> Iterator[None]:
    """Inside, data that is not on this machine is an error: looking at a run fetches nothing."""
    token = _MAY_FETCH.set(False)
    try:
        yield
    finally:
        _MAY_FETCH.reset(token)


def check_may_fetch(name: str) -> None:
    """Raise `DataError` inside of `without_fetching`; called before anything is fetched.

    Args:
        name: what would be fetched.
    """
    if not _MAY_FETCH.get():
        raise DataError(f"{name} is not on this machine, and looking at a run fetches nothing")


def cache_folder() -> Path:
    """Where fetched data is kept."""
    folder = os.environ.get("SUBMODEL_DATA")
    return Path(folder).expanduser() if folder else Path.home() / ".cache" / "submodel"


def cache_file(key: str) -> Path:
    """The file of one dataset."""
    return cache_folder() / f"{key}.safetensors"


def _sha256(tensors: Mapping[str, NDArray[np.generic]], names: str, origin: str) -> str:
    digest = hashlib.sha256(f"{names}\n{origin}\n".encode())
    for name in _TENSORS:
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()


def store(key: str, images: ImageSet) -> Path:
    """Write the images beside their place, then rename: nobody ever sees half a file."""
    tensors: dict[str, NDArray[np.generic]] = {
        "train.pixels": np.ascontiguousarray(images.train.pixels),
        "train.labels": images.train.labels,
        "test.pixels": np.ascontiguousarray(images.test.pixels),
        "test.labels": images.test.labels,
    }
    names = json.dumps(images.names)
    about = {"names": names, "origin": images.origin}
    final = cache_file(key)
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, {**about, "sha256": _sha256(tensors, names, images.origin)})
        partial.replace(final)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            partial.unlink()
        raise DataError(
            f"{final.parent}: cannot keep the data there ({error}); set the environment variable "
            "SUBMODEL_DATA to a folder that can be written"
        ) from None
    return final


def restore(key: str) -> ImageSet:
    """Read the images back, checked against their checksum."""
    path = cache_file(key)
    try:
        with safe_open(path, framework="np") as content:
            tensors = {name: content.get_tensor(name) for name in _TENSORS}
            about = content.metadata() or {}
        names, origin = about["names"], about["origin"]
        whole = about["sha256"] == _sha256(tensors, names, origin)
        classes = parse_typed(_NAMES, names)
    except (OSError, SafetensorError, KeyError, ValueError, UnreadableError) as error:
        raise DataError(
            f"{path}: damaged ({plain(error)}); delete it, and it is made anew"
        ) from None
    if not whole:
        raise DataError(
            f"{path}: damaged (it does not match its checksum); delete it, and it is made anew"
        )
    return ImageSet(
        Images(tensors["train.pixels"], tensors["train.labels"]),
        Images(tensors["test.pixels"], tensors["test.labels"]),
        classes,
        origin,
    )
