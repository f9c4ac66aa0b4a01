"""Rules for reductions, and for operators that depend on the order along some dimensions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from submodel.model.axes.expression import Expression, Fixed, product
from submodel.model.axes.rules.call import Call, Results, rule


def chosen(call: Call, argument: str, count: int) -> set[int]:
    """The dimensions that an argument names; all, if it names none."""
    given = call.get(argument)
    listed = [given] if isinstance(given, int) else list(given or ())
    return {d % max(count, 1) for d in listed} or set(range(count))


@rule("sum", "nansum", "mean", "prod", "amax", "amin", "aminmax", "all", "any", "count_nonzero")
@rule("var", "std", "var_mean", "std_mean", "norm", "linalg_vector_norm", "logsumexp")
@rule("max.default", "min.default")
def reduction(call: Call) -> Results:
    """Any order along the reduced dimensions gives the same; masked units may still count."""
    own = call.dimensions("input" if "input" in call.arguments else "self")
    gone = chosen(call, "dim", len(own))
    for d in gone & set(range(len(own))):
        call.mix(own[d], "runs over it")
    return [_without(own, gone, len(result.shape)) for result in call.results]


def _without(
    own: Iterable[Expression], gone: set[int], count: int, size: int = 1
) -> list[Expression]:
    """The dimensions after some have shrunk to ``size``, or gone if so few are left."""
    own = list(own)
    keep = count == len(own)
    return [
        Fixed(size, "positions") if d in gone else e
        for d, e in enumerate(own)
        if keep or d not in gone
    ]


@rule("argmax", "argmin", "max.dim", "min.dim", "median.dim", "nanmedian.dim", "mode", "kthvalue")
@rule("cumsum", "cumprod", "cummax", "cummin", "_cummax_helper", "logcumsumexp")
@rule("sort", "argsort", "topk")
def ordered(call: Call) -> Results:
    """Results tell positions along a dimension, or depend on its order."""
    own = call.dimensions("self")
    places = chosen(call, "dim", len(own))
    for d in places & set(range(len(own))):
        call.freeze(own[d])
    return [
        _without(own, places, r.dim(), r.shape[max(places)] if r.dim() == len(own) and own else 1)
        for r in call.results
    ]


@rule("flip", "roll")
def rearranged(call: Call) -> Results:
    """Units move along some dimensions, the same for all."""
    own = call.dimensions("self")
    for d in chosen(call, "dims", len(own)):
        call.freeze(own[d])
    return [own]


@rule("_fft_r2c", "_fft_c2r", "_fft_c2c")
def fourier(call: Call) -> Results:
    """Positions become frequencies along some dimensions; the others run along."""
    own, found = list(call.dimensions("self")), call.results[0].shape
    for d in chosen(call, "dim", len(own)):
        call.freeze(own[d], "as positions or frequencies")
        own[d] = Fixed(found[d], f"frequencies or positions made by {call.name}")
    return [own]


@rule("triu", "tril")
def triangle(call: Call) -> Results:
    """Rows and columns are compared by position."""
    own = call.dimensions("self")
    for dimension in own[-2:]:
        call.freeze(dimension)
    return [own]


_POOLS = ["max_pool{}_with_indices", "avg_pool{}", "adaptive_max_pool{}", "_adaptive_avg_pool{}"]
_POOLS += ["adaptive_avg_pool{}", "max_pool{}", "reflection_pad{}", "replication_pad{}"]
_POOLS += ["upsample_nearest{}", "_upsample_nearest_exact{}"]
_SPATIAL = [name.format(f"{n}d") for name in _POOLS for n in (1, 2, 3)]
_SPATIAL += ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"]
_SPATIAL += ["upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"]


@rule(*_SPATIAL)
def spatial(call: Call) -> Results:
    """The last dimensions are positions in space; the others run along."""
    digits = re.search(r"([123])d", call.name)
    assert digits is not None
    count = int(digits[1])
    own = list(call.dimensions("input" if "input" in call.arguments else "self"))
    for d in range(-count, 0):
        if not _untouched(call, d, count):
            call.freeze(own[d], "as a position in space")
            own[d] = Fixed(call.results[0].shape[d], f"positions made by {call.name}")
    return [own for _ in call.results]


def _untouched(call: Call, d: int, count: int) -> bool:
    """Whether a pooling window has size one along a dimension and moves by one."""

    def along(argument: str, default: int) -> int:
        given = call.get(argument) or [default]
        return int((list(given) * count)[d] if len(given) == 1 else given[d])

    if "kernel_size" not in call.arguments:
        return False
    kernel = along("kernel_size", 1)
    return (kernel, along("stride", kernel), along("padding", 0)) == (1, 1, 0)


@rule("im2col")
def im2col(call: Call) -> Results:
    """Channels x kernel positions, and the places of the kernel."""
    *lead, height, columns = own = call.dimensions("self")
    for dimension in (height, columns):
        call.freeze(dimension, "as a position in space")
    result = call.results[0].shape
    within = Fixed(result[-2] // own[-3].size, "positions in a kernel")
    return [[*lead[:-1], product([lead[-1], within]), Fixed(result[-1], "positions")]]


@rule("unfold")
def unfold(call: Call) -> Results:
    """Windows along one dimension."""
    own = list(call.dimensions("self"))
    dim = call["dimension"] % len(own)
    call.freeze(own[dim], "in windows")
    own[dim] = Fixed(call.results[0].shape[dim], "windows")
    return [[*own, Fixed(call["size"], "positions in a window")]]
