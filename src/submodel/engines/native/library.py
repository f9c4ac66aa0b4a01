"""Compilation of the kernels with the machine's C compiler, per user, compiler and processor.

The library is in the user's cache folder under a name that depends on the source, the compiler and
the processor; it is written to a temporary file and renamed, so that several processes may build it
at the same time.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path

from submodel.core.errors import SubmodelError

_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-shared", "-fPIC")
_SECONDS = 120.0  # time limit for the compiler


class BuildError(SubmodelError):
    """Raised if the kernels cannot be built, with the reason."""


def find_compiler() -> list[str] | None:
    """The command of a C compiler: ``CC``, or ``cc``, ``gcc``, ``clang``; None if there is none.

    >>> command = find_compiler()
    >>> command is None or len(command) > 0
    True
    """
    if words := shlex.split(os.environ.get("CC", "")):
        return words if shutil.which(words[0]) else None
    path = next((p for name in ("cc", "gcc", "clang") if (p := shutil.which(name))), None)
    return None if path is None else [path]


@lru_cache(maxsize=1)
def built_library() -> Path:
    """The path of the library, built if necessary; raise `BuildError` if that is impossible."""
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("there is no C compiler (cc, gcc, clang, or the command in CC)")
    files = resources.files(__package__).joinpath("code").iterdir()
    sources = {file.name: file.read_text("utf-8") for file in files}
    path = _cache_folder() / f"kernels-{_key(sources, compiler)}.so"
    if not path.is_file():
        _build(sources, compiler, path)
    return path


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "submodel" / "kernels"


def _key(sources: Mapping[str, str], compiler: list[str]) -> str:
    """A hash of everything that the library depends on."""
    try:
        version = subprocess.run(
            [*compiler, "--version"], capture_output=True, text=True, timeout=_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"the C compiler {compiler[0]!r} does not run: {error}") from None
    texts = (text for _, text in sorted(sources.items()))
    parts = (*texts, *compiler, version, *_FLAGS, platform.machine(), _processor())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _processor() -> str:
    """A description of the processor and its instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    begins = ("model name", "flags", "Features")
    return "\n".join(sorted({line for line in lines if line.startswith(begins)}))


def _build(sources: Mapping[str, str], compiler: list[str], path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            for name, text in sources.items():
                (Path(folder) / name).write_text(text, "utf-8")
            codes = [str(Path(folder) / name) for name in sorted(sources) if name.endswith(".c")]
            library = Path(folder) / "kernels.so"
            result = subprocess.run(
                [*compiler, *_FLAGS, "-o", str(library), *codes, "-lm"],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                check=False,
            )
            if result.returncode:
                lines = result.stderr.strip().splitlines() or ["no message"]
                raise BuildError(f"{compiler[0]} cannot build the kernels: {lines[0]}")
            library.replace(path)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"the kernels cannot be built in {path.parent}: {error}") from None


_I64 = ctypes.c_int64
_FLOATS = ctypes.c_void_p

CONVOLUTION, NORM, RELU, SCALE, ADD, MAX_POOL, MEAN_POOL, COPY = range(8)
"""The kinds of `Op`."""
LANES = 16
"""The number of floats in the widest vector, by which kernels may read past the end of a row."""


class Op(ctypes.Structure):
    """A layer of a net: ``op`` of `code/types.h`."""

    _fields_ = (
        *((name, _I64) for name in (
            "kind", "in_", "in2", "out", "din", "din2", "dout", "add_in", "add_in2",
            "c", "h", "w", "pad", "oc", "oh", "ow", "opad", "dpad", "dopad", "pad2", "dpad2",
            "kh", "kw", "stride", "edge", "by_tiles", "weight", "bias", "relu", "statistics",
            "has_statistics",
        )),
        *((name, ctypes.c_double) for name in ("scale", "eps")),
    )  # fmt: skip


class StackTensor(ctypes.Structure):
    """A parameter of all clients: ``tensor`` of `code/types.h`."""

    _fields_ = (
        ("value", _FLOATS),
        ("gradient", _FLOATS),
        *((name, _I64) for name in ("client", "so", "si", "sk")),
    )


class NetPlan(ctypes.Structure):
    """The sizes of a computation: ``plan`` of `code/types.h`."""

    _fields_ = tuple(
        (name, _I64) for name in (
            "clients", "batch", "channels", "height", "width", "pad", "outputs", "output",
            "doutput", "activations", "filters", "offsets", "phases", "turns",
        )
    )  # fmt: skip


class TrainingTensor(ctypes.Structure):
    """Momentum and mask of a parameter in training: ``slot`` of `code/types.h`."""

    _fields_ = (("momentum", _FLOATS), ("mask", _FLOATS), ("size", _I64))


class TrainingPlan(ctypes.Structure):
    """The steps of all clients: ``training`` of `code/types.h`."""

    _fields_ = (
        ("steps", _I64),
        *((name, _FLOATS) for name in ("images", "positions", "targets", "present")),
        *((name, _I64) for name in ("classes", "zeros")),
        *((name, _FLOATS) for name in ("rates", "losses")),
        ("nesterov", _I64),
        *((name, ctypes.c_double) for name in ("momentum", "decay", "clip", "smoothing")),
    )


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL:
    """Load the library, and build it first if necessary; raise `BuildError` if impossible."""
    library = ctypes.CDLL(str(built_library()))
    for function in (library.forward, library.backward):
        function.argtypes = [ctypes.c_void_p, _I64, *[ctypes.c_void_p] * 6]
        function.restype = None
    pointer = ctypes.c_void_p
    library.train.argtypes = [pointer, _I64, *[pointer] * 3, _I64, *[pointer] * 4]
    library.train.restype = None
    return library
