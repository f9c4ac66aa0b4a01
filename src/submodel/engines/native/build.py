"""Building the kernels with the machine's C compiler, once for each user, compiler and processor.

The library lies in the user's cache folder under a name that follows from the source, the
compiler and the processor; it is written beside and renamed, so that several processes may build
it at once.
"""

from __future__ import annotations

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

from submodel.errors import SubmodelError

_FLAGS = ("-O3", "-march=native", "-std=gnu11", "-fno-math-errno", "-shared", "-fPIC")
_SECONDS = 120.0  # that a compiler may take


class BuildError(SubmodelError):
    """Why there are no kernels, in words."""


def find_compiler() -> list[str] | None:
    """The command of a C compiler: what ``CC`` says, or ``cc``, ``gcc``, ``clang``; None: no such.

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
    """The path of the library, built if need be; raises `BuildError` where it cannot be."""
    compiler = find_compiler()
    if compiler is None:
        raise BuildError("there is no C compiler (cc, gcc, clang, or what CC names)")
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
    """Of all that the library depends on."""
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
    """What decides which instructions there are."""
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
                lines = result.stderr.strip().splitlines() or ["it said nothing"]
                raise BuildError(f"{compiler[0]} cannot build the kernels: {lines[0]}")
            library.replace(path)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"the kernels cannot be built in {path.parent}: {error}") from None
