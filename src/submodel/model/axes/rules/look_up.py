"""Rules for look-ups and writes by index: what is indexed keeps its order, the rest runs along."""

from __future__ import annotations

import torch
from torch import Tensor

from submodel.model.axes.expression import ONE, Expression, FixedTerm
from submodel.model.axes.rules.call import Call, Results, rule

BY_INDEX = "looked up by index"


@rule("embedding")
def embedding(call: Call) -> Results:
    """Rows looked up by the data."""
    rows, *rest = call.dimensions("weight")
    call.freeze(rows, BY_INDEX)
    return [[*call.dimensions("indices"), *rest]]


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(call: Call) -> Results:
    """Rows looked up by the data and added up."""
    rows, width = call.dimensions("weight")
    call.freeze(rows, BY_INDEX)
    return [[FixedTerm(call.results[0].shape[0], "bags"), width]]


@rule("index_select")
def index_select(call: Call) -> Results:
    """Units looked up by the data along one dimension."""
    dimensions = list(call.dimensions("self"))
    dim = call["dim"] % len(dimensions)
    call.freeze(dimensions[dim], BY_INDEX)
    dimensions[dim] = (call.dimensions("index") or (ONE,))[0]
    return [dimensions]


@rule("gather")
def gather_along(call: Call) -> Results:
    """Units looked up by the data along one dimension, one by one along the others."""
    dimensions, index = call.dimensions("self"), list(call.dimensions("index"))
    for d, (mine, theirs) in enumerate(zip(dimensions, index, strict=True)):
        if d == call["dim"] % len(dimensions):
            call.freeze(mine, BY_INDEX)
        else:
            index[d] = _along(call, mine, theirs)
    return [index]


def _along(call: Call, mine: Expression, theirs: Expression) -> Expression:
    """Two dimensions that run along, or of which one is only read in part."""
    if mine.size == theirs.size:
        return call.unify(mine, theirs)
    call.freeze(mine)
    call.freeze(theirs)
    return theirs


@rule("scatter", "scatter_add", "scatter_reduce.two")
def scatter(call: Call) -> Results:
    """Units written to places that the data tell along one dimension."""
    dimensions, index = call.dimensions("self"), call.dimensions("index")
    source = call.dimensions("src") if "src" in call.arguments else index
    for d, (mine, place, value) in enumerate(zip(dimensions, index, source, strict=True)):
        if d == call["dim"] % len(dimensions):
            for expression in (mine, place, value):
                call.freeze(expression, BY_INDEX)
        else:
            _along(call, mine, place)
            _along(call, place, value)
    return [dimensions]


@rule("index_add", "index_copy")
def index_add(call: Call) -> Results:
    """Slices written to places that the data tell."""
    dimensions, source = call.dimensions("self"), call.dimensions("source")
    for d, (mine, value) in enumerate(zip(dimensions, source, strict=True)):
        if d == call["dim"] % len(dimensions):
            call.freeze(mine, BY_INDEX)
            call.freeze(value, BY_INDEX)
        else:
            call.unify(mine, value)
    return [dimensions]


@rule("index.Tensor")
def index(call: Call) -> Results:
    """Units looked up along some dimensions, by positions or by a mask."""
    return [_looked_up(call, call.results[0])]


@rule("index_put", "_unsafe_index_put")
def index_put(call: Call) -> Results:
    """Units written along some dimensions, to positions or where a mask is true."""
    looked_up = _looked_up(call, call["values"])
    places = call.broadcast([looked_up, call.dimensions("values")])
    if [p.size for p in places] != [f.size for f in looked_up]:
        raise ValueError("values of another shape than the places")
    return [call.dimensions("self")]


def _looked_up(call: Call, values: Tensor) -> list[Expression]:
    """The dimensions of what ``indices`` look up; those that they cover are frozen.

    How many units a mask looks up is in the data: it is read off the shape of ``values``.
    """
    dimensions, indices = call.dimensions("self"), call["indices"]
    tensors: list[Tensor] = [i for i in indices if i is not None]
    masks = [i for i in tensors if i.dtype in (torch.bool, torch.uint8)]
    if masks and len(tensors) > 1:
        raise ValueError("a mask among other indices")
    covered_dimensions: list[int] = []
    position = 0
    for i in indices:
        width = i.dim() if masks and i is not None else 1
        covered_dimensions += range(position, position + width) if i is not None else ()
        position += width
    for d in covered_dimensions:
        call.freeze(dimensions[d], "looked up by a mask" if masks else BY_INDEX)
    other_dimensions = [e for d, e in enumerate(dimensions) if d not in covered_dimensions]
    together = covered_dimensions == list(
        range(covered_dimensions[0], covered_dimensions[0] + len(covered_dimensions))
    )
    first = covered_dimensions[0] if together else 0
    if masks:
        for dimension in call.record.of(masks[0]).dimensions:
            call.freeze(dimension, "as a mask")
        place = values.dim() - 1 - len(other_dimensions[first:])
        count = values.shape[place] if place >= 0 else 1
        looked_up: list[Expression] = [FixedTerm(count, "looked up by a mask")]
    else:
        looked_up = call.broadcast([call.record.of(i).dimensions for i in tensors])
    return [*other_dimensions[:first], *looked_up, *other_dimensions[first:]]


@rule("_pack_padded_sequence")
def pack(call: Call) -> Results:
    """Steps of all sequences, without the padding; what is at a step runs along."""
    dimensions = call.dimensions("input")
    for dimension in dimensions[:2]:
        call.freeze(dimension, "as steps of sequences")
    steps, counts = (FixedTerm(r.shape[0], "steps of sequences") for r in call.results)
    return [[steps, *dimensions[2:]], [counts]]


@rule("_pad_packed_sequence")
def unpack(call: Call) -> Results:
    """The steps back in their sequences."""
    dimensions = call.dimensions("data")
    call.freeze(dimensions[0], "as steps of sequences")
    shape, lengths = (r.shape for r in call.results)
    sequences = [FixedTerm(n, "steps of sequences") for n in shape[:2]]
    return [[*sequences, *dimensions[1:]], [FixedTerm(lengths[0], "sequences")]]


@rule("grid_sampler_2d", "grid_sampler_3d")
def grid_sample(call: Call) -> Results:
    """Values between positions in space, where the data tell."""
    batch, channels, *space = call.dimensions("input")
    of_grid, *grid = call.dimensions("grid")
    for dimension in (*space, *grid):
        call.freeze(dimension, "as a position in space")
    positions = [FixedTerm(n, f"positions made by {call.name}") for n in call.results[0].shape[2:]]
    return [[call.unify(batch, of_grid), channels, *positions]]
