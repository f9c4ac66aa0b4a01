"""Measure the peak FLOP/s of large matrix products on one thread."""

from __future__ import annotations

import time

import torch

_SIZE, _SECONDS = 1536, 3.0


def peak() -> float:
    """Return the FLOP/s of the fastest product in a few seconds."""
    torch.set_num_threads(1)
    a, b = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    out = torch.empty(_SIZE, _SIZE)
    begin, times = time.perf_counter(), []
    while time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        torch.mm(a, b, out=out)
        times.append(time.perf_counter() - start)
    return 2 * _SIZE**3 / min(times)


if __name__ == "__main__":
    print(peak())
