"""The compiled kernels as Python calls them: the structures of `code/types.h`, field by field."""

from __future__ import annotations

import ctypes
from functools import lru_cache

from submodel.engines.native.build import built_library

_I64 = ctypes.c_int64
_FLOATS = ctypes.c_void_p

CONVOLUTION, NORM, RELU, SCALE, ADD, MAX_POOL, MEAN_POOL, COPY = range(8)
"""The kinds of `Op`."""
LANES = 16
"""The widest vector that a kernel may read beyond the end of a row."""


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
    """What is computed for how many clients: ``plan`` of `code/types.h`."""

    _fields_ = tuple(
        (name, _I64) for name in (
            "clients", "batch", "channels", "height", "width", "pad", "outputs", "output",
            "doutput", "activations", "filters", "offsets", "phases", "turns",
        )
    )  # fmt: skip


class TensorSlot(ctypes.Structure):
    """What goes with a parameter in training: ``slot`` of `code/types.h`."""

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
    """The library, built first where that has not been done; raises `BuildError`."""
    library = ctypes.CDLL(str(built_library()))
    for function in (library.forward, library.backward):
        function.argtypes = [ctypes.c_void_p, _I64, *[ctypes.c_void_p] * 6]
        function.restype = None
    pointer = ctypes.c_void_p
    library.train.argtypes = [pointer, _I64, *[pointer] * 3, _I64, *[pointer] * 4]
    library.train.restype = None
    return library
