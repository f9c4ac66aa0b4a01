"""A process whose arithmetic does not depend on the model of the processor.

PyTorch, oneDNN, NNPACK, MKL and NumPy's OpenBLAS choose among kernels by the features of the
processor (AVX2, AVX-512, FMA), and these add in another order. `ENVIRONMENT` and
`use_plain_kernels` choose kernels of every x86-64 processor: loops compiled for its baseline, MKL
in the mode that repeats on all of them, OpenBLAS for SSE3, neither oneDNN nor NNPACK, one thread.
glibc's exp, log, sin and pow have variants with FMA that may differ in the last bit; they are
disabled, as are NumPy's for AVX2 and AVX-512. The libraries read most of this when they are loaded,
so a separate process is needed.

MKL's vector functions have no mode that repeats on all processors. Of those, the project uses the
square root, which is off by a bit for some arguments (others on each processor); it is replaced by
NumPy's, which is the processor's own and exact. (`atan` and, in double precision, `tan` differ as
well; no case uses them.)

The version of PyTorch and the architecture remain: `machine`. All golden ends were the same on an
EPYC (family 26, AVX-512), with its vector instructions visible or hidden from glibc and NumPy, and,
except for the square roots, on a Xeon (Rocket Lake); some of every group under qemu as Haswell, Ivy
Bridge and Nehalem.
"""

from __future__ import annotations

import os
import platform
import runpy
import subprocess
import sys
import warnings
from pathlib import Path

import numpy
import torch
from torch import Tensor

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-AVX2_Usable,-FMA,-FMA_Usable,-FMA4",
    "OPENBLAS_CORETYPE": "Prescott",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
}


def machine() -> dict[str, str]:
    """Return everything that the last bits of a float32 sum depend on in such a process."""
    return {"torch": torch.__version__, "architecture": platform.machine()}


def run_portably(
    module: str, *arguments: str | Path, cwd: Path = ROOT, standard_input: str = ""
) -> str:
    """Run ``python -m module arguments`` with plain kernels; return its output."""
    paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])  # of the tested code
    done = subprocess.run(
        [sys.executable, "-m", __name__, module, *map(str, arguments)],
        input=standard_input,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=cwd,
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def use_plain_kernels() -> None:
    """Disable in this process everything that has no environment variable."""
    assert torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(_enabled=False)  # type: ignore[no-untyped-call]
    torch.backends.nnpack.set_flags(_enabled=False)  # type: ignore[no-untyped-call]
    kernels = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    # checks that they are replaced
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        for name, function in _ROOTS.items():
            kernels.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
    _LIBRARIES.append(kernels)  # disables its kernels as well


def _root(values: Tensor) -> Tensor:
    return _root_into(values, out=torch.empty_like(values))


def _root_into(values: Tensor, *, out: Tensor) -> Tensor:
    numpy.sqrt(values.numpy(), out=out.numpy())
    return out


_ROOTS = {"sqrt": _root, "sqrt.out": _root_into, "sqrt_": lambda x: _root_into(x, out=x)}
_LIBRARIES: list[torch.library.Library] = []


def main() -> None:
    """Run a module in this process, which `run_portably` started."""
    use_plain_kernels()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
