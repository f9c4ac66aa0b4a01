"""Rules for operators that move values: views, splits, joins, constants, indexing."""

from __future__ import annotations

import torch
from torch import Tensor

from submodel.model.axes.layout import (
    ONE,
    Along,
    Concatenation,
    FixedPart,
    Layout,
    concatenation,
    product,
)
from submodel.model.axes.record import geometry
from submodel.model.axes.rules.call import Call, Results, pointwise, rule

rule("alias", "clone", "detach", "lift_fresh", "lift_fresh_copy", "_to_copy", moves=True)(pointwise)
rule("copy", "fill", "zero", "masked_fill", "floor_divide", "polar", "complex")(pointwise)
rule("hardswish", "log_sigmoid_forward", "native_dropout", "_prelu_kernel", "threshold")(pointwise)
rule("_conj", "_neg_view", "_conj_physical", "resolve_conj", "resolve_neg", moves=True)(pointwise)


@rule("_local_scalar_dense", "_assert_async", "_assert_scalar", "_assert_tensor_metadata")
def nothing(call: Call) -> Results:  # noqa: ARG001 - the form of a rule
    """The operator returns a Python value or nothing."""
    return []


@rule("zeros_like", "ones_like", "full_like", "empty_like", makes=True)
def constant_like(call: Call) -> Results:
    """A constant with the dimensions of another tensor, whose values are not read."""
    dimensions = call.record.dimensions_of(call["self"])
    return constant(call) if dimensions is None else [dimensions]


@rule("zeros", "ones", "full", "empty", "scalar_tensor", "empty_strided", makes=True)
@rule("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided", makes=True)
def constant(call: Call) -> Results:
    """A constant has no order, so its dimensions are free."""
    return [[call.record.algebra.fresh(n) for n in result.shape] for result in call.results]


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy", "view_copy", moves=True)
def view(call: Call) -> Results:
    """Runs of old and new dimensions of equal total size are merged, then split."""
    facts, new = call.facts("self"), list(call.results[0].shape)
    old = list(facts.dimensions)
    if 0 in new:
        return [[FixedPart(n) for n in new]]
    result: list[Layout] = []
    while new:
        run: list[Layout] = [old.pop(0) if old else ONE]
        sizes = [new.pop(0)]
        have, want = run[0].size, sizes[0]
        while have != want:
            if have < want:
                run.append(old.pop(0))
                have *= run[-1].size
            else:
                sizes.append(new.pop(0))
                want *= sizes[-1]
        whole = product(map(call.record.algebra.resolve, run))
        if len(run) > 1 and not facts.weight:
            call.record.products.append(whole)
        result += call.factor(whole, sizes)
    return [result]


@rule("view.dtype")
def view_as_type(call: Call) -> Results:
    """Reinterpretation as another type; dimensions stay if its size is equal."""
    if call["self"].shape != call.results[0].shape:
        call.freeze(call.dimensions("self")[-1], "as another type")
        return [[*call.dimensions("self")[:-1], FixedPart(call.results[0].shape[-1])]]
    return [call.dimensions("self")]


@rule("as_strided", moves=True)
def as_strided(call: Call) -> Results:
    """The tensor itself keeps its dimensions; any other view of the memory freezes them."""
    tensor, result = call["self"], call.results[0]
    if geometry(tensor) == geometry(result):
        return [call.dimensions("self")]
    for dimension in call.dimensions("self"):
        call.freeze(dimension, "by its place in memory")
    return [[FixedPart(n, f"made by {call.name}") for n in result.shape]]


@rule("expand", moves=True)
def expand(call: Call) -> Results:
    """Copies along a dimension of size one are equal, so that dimension is free."""
    result = [call.record.algebra.fresh(n) for n in call.results[0].shape]
    dimensions = call.dimensions("self")
    for d, dimension in enumerate(dimensions, start=len(result) - len(dimensions)):
        if dimension.size == result[d].size:
            result[d] = dimension
    call.record.copies |= {d for d in result if isinstance(d, Along) and d not in dimensions}
    return [result]


@rule("repeat")
def repeat(call: Call) -> Results:
    """Each dimension becomes number of the copy x position."""
    dimensions = call.dimensions("self")
    all_dimensions = [ONE] * (len(call["repeats"]) - len(dimensions)) + list(dimensions)
    return [
        [
            product([call.record.algebra.fresh(n), d])
            for n, d in zip(call["repeats"], all_dimensions, strict=True)
        ]
    ]


@rule("permute", "t", moves=True)
def permute(call: Call) -> Results:
    """The dimensions are reordered."""
    dimensions = call.dimensions("self")
    return [[dimensions[d] for d in call.get("dims", range(len(dimensions))[::-1])]]


@rule("transpose", moves=True)
def transpose(call: Call) -> Results:
    """Two dimensions are swapped."""
    dimensions = list(call.dimensions("self"))
    if dimensions:
        one, other = call["dim0"], call["dim1"]
        dimensions[one], dimensions[other] = dimensions[other], dimensions[one]
    return [dimensions]


@rule("unsqueeze", moves=True)
def unsqueeze(call: Call) -> Results:
    """A dimension of size one is added."""
    dimensions = list(call.dimensions("self"))
    dimensions.insert(call["dim"] % (len(dimensions) + 1), ONE)
    return [dimensions]


@rule("squeeze", moves=True)
def squeeze(call: Call) -> Results:
    """All or some dimensions of size one are removed."""
    dimensions = call.dimensions("self")
    dims = call.get("dim", range(len(dimensions)))
    chosen = {d % max(len(dimensions), 1) for d in ([dims] if isinstance(dims, int) else dims)}
    return [[e for d, e in enumerate(dimensions) if d not in chosen or e.size != 1]]


@rule("cat")
def cat(call: Call) -> Results:
    """Tensors are concatenated along one dimension and equal along the others."""
    tensors = [t for t in call["tensors"] if tuple(t.shape) != (0,)]  # torch skips empty ones
    if not tensors:
        return [[FixedPart(0)]]
    dimensions = [call.record.of(t).dimensions for t in tensors]
    dim = call["dim"] % len(dimensions[0])
    facts = map(call.record.of, tensors)
    call.record.starts += [k.dimensions[dim] for k in facts if k.constant]
    call.record.joined_tensors.update(id(result) for result in call.results)
    result = call.broadcast([[*k[:dim], ONE, *k[dim + 1 :]] for k in dimensions])
    result[dim] = concatenation(call.record.algebra.resolve(k[dim]) for k in dimensions)
    return [result]


@rule("stack")
def stack(call: Call) -> Results:
    """A new dimension numbers the tensors."""
    result = call.broadcast([call.record.of(t).dimensions for t in call["tensors"]])
    words = f"the tensors joined by {call.name}"
    result.insert(call["dim"] % (len(result) + 1), FixedPart(len(call["tensors"]), words))
    return [result]


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", moves=True)
def split(call: Call) -> Results:
    """One dimension is split into consecutive pieces."""
    dimensions, dim = call.along()
    if call.results[0].shape[dim] == 1:
        call.note_steps(dim)
    pieces = call.pieces(dimensions[dim], [r.shape[dim] for r in call.results])
    return [[*dimensions[:dim], piece, *dimensions[dim + 1 :]] for piece in pieces]


@rule("slice", moves=True)
def slice_(call: Call) -> Results:
    """The result has a piece of one dimension, or every n-th unit of it."""
    dimensions = list(call.dimensions("self"))
    dim, step = call["dim"] % len(dimensions), call["step"]
    size, length = dimensions[dim].size, call.results[0].shape[dim]
    if length == 1:
        call.note_steps(dim)
    start = min(max(s + size if (s := call["start"] or 0) < 0 else s, 0), size)
    if step == 1:
        dimensions[dim] = call.pieces(dimensions[dim], [start, length, size - start - length])[1]
    elif start < step and length * step == size:
        dimensions[dim], phase = call.factor(dimensions[dim], [length, step])
        call.freeze(phase)
    else:
        call.freeze(dimensions[dim])
        dimensions[dim] = FixedPart(length, f"made by {call.name}")
    return [dimensions]


@rule("select.int", moves=True)
def select(call: Call) -> Results:
    """One unit is selected by position, so its part is frozen."""
    dimensions, dim = call.along()
    dimension = dimensions.pop(dim)
    call.note_steps(dim)
    _freeze_at(call, dimension, call["index"] % dimension.size)
    return [dimensions]


def _freeze_at(call: Call, expression: Layout, position: int) -> None:
    """Freeze the part of a dimension that contains a position."""
    resolution = call.record.algebra.resolve(expression)
    if not isinstance(resolution, Concatenation):
        return call.freeze_if_read(resolution)
    for part in resolution.parts:
        if position < part.size:
            return _freeze_at(call, part, position)
        position -= part.size
    return None


@rule("unbind.int", moves=True)
def unbind(call: Call) -> Results:
    """Every unit of one dimension becomes a tensor."""
    dimensions, dim = call.along()
    call.note_steps(dim)
    call.freeze(dimensions.pop(dim))
    return [dimensions for _ in call.results]


@rule("glu")
def glu(call: Call) -> Results:
    """One half of a dimension gates the other half."""
    dimensions, dim = call.along()
    one, other = call.pieces(dimensions[dim], [dimensions[dim].size // 2] * 2)
    dimensions[dim] = call.unify(one, other)
    return [dimensions]


@rule("constant_pad_nd")
def pad(call: Call) -> Results:
    """Equal values are added before and after; these parts are free."""
    dimensions, pads = list(call.dimensions("self")), call["pad"]
    for k in range(len(pads) // 2):
        dim, (before, after) = len(dimensions) - 1 - k, pads[2 * k : 2 * k + 2]
        size = dimensions[dim].size + min(before, 0) + min(after, 0)
        middle = call.pieces(dimensions[dim], [max(-before, 0), size, max(-after, 0)])[1]
        fresh = call.record.algebra.fresh
        dimensions[dim] = concatenation([fresh(max(before, 0)), middle, fresh(max(after, 0))])
    return [dimensions]


@rule("view_as_complex")
def view_as_complex(call: Call) -> Results:
    """The last dimension, (real, imaginary), is removed."""
    dimensions = call.dimensions("self")
    call.freeze(dimensions[-1], "as real and imaginary part")
    return [dimensions[:-1]]


@rule("view_as_real")
def view_as_real(call: Call) -> Results:
    """A last dimension (real, imaginary) is added."""
    return [[*call.dimensions("self"), FixedPart(2, "the real and the imaginary part")]]


BY_INDEX = "looked up by index"


@rule("embedding")
def embedding(call: Call) -> Results:
    """Rows are looked up by the data."""
    rows, *rest = call.dimensions("weight")
    call.freeze(rows, BY_INDEX)
    return [[*call.dimensions("indices"), *rest]]


@rule("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(call: Call) -> Results:
    """Rows are looked up by the data and added."""
    rows, width = call.dimensions("weight")
    call.freeze(rows, BY_INDEX)
    return [[FixedPart(call.results[0].shape[0], "bags"), width]]


@rule("index_select")
def index_select(call: Call) -> Results:
    """Units of one dimension are looked up by the data."""
    dimensions, dim = call.along()
    call.freeze(dimensions[dim], BY_INDEX)
    dimensions[dim] = (call.dimensions("index") or (ONE,))[0]
    return [dimensions]


@rule("gather")
def gather_along(call: Call) -> Results:
    """Units of one dimension are looked up by the data, separately along the others."""
    dimensions, index = call.dimensions("self"), list(call.dimensions("index"))
    for d, (mine, theirs) in enumerate(zip(dimensions, index, strict=True)):
        if d == call["dim"] % len(dimensions):
            call.freeze(mine, BY_INDEX)
        else:
            index[d] = _along(call, mine, theirs)
    return [index]


def _along(call: Call, mine: Layout, theirs: Layout) -> Layout:
    """Unify two dimensions; freeze both if one is read only in part."""
    if mine.size == theirs.size:
        return call.unify(mine, theirs)
    call.freeze(mine)
    call.freeze(theirs)
    return theirs


@rule("scatter", "scatter_add", "scatter_reduce.two")
def scatter(call: Call) -> Results:
    """Units are written to positions given by the data along one dimension."""
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
    """Slices are written to positions given by the data."""
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
    """Units are looked up along some dimensions, by positions or by a mask."""
    return [_looked_up(call, call.results[0])]


@rule("index_put", "_unsafe_index_put")
def index_put(call: Call) -> Results:
    """Units are written along some dimensions, to positions or where a mask is true."""
    looked_up = _looked_up(call, call["values"])
    places = call.broadcast([looked_up, call.dimensions("values")])
    if [p.size for p in places] != [f.size for f in looked_up]:
        raise ValueError("values of another shape than the places")
    return [call.dimensions("self")]


def _looked_up(call: Call, values: Tensor) -> list[Layout]:
    """The dimensions of the looked-up values; dimensions covered by ``indices`` are frozen.

    The number of units that a mask selects depends on the data: it comes from the shape of
    ``values``.
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
        looked_up: list[Layout] = [FixedPart(count, "looked up by a mask")]
    else:
        looked_up = call.broadcast([call.record.of(i).dimensions for i in tensors])
    return [*other_dimensions[:first], *looked_up, *other_dimensions[first:]]


@rule("_pack_padded_sequence")
def pack(call: Call) -> Results:
    """Steps of all sequences are packed without padding; other dimensions stay."""
    dimensions = call.dimensions("input")
    for dimension in dimensions[:2]:
        call.freeze(dimension, "as steps of sequences")
    steps, counts = (FixedPart(r.shape[0], "steps of sequences") for r in call.results)
    return [[steps, *dimensions[2:]], [counts]]


@rule("_pad_packed_sequence")
def unpack(call: Call) -> Results:
    """Packed steps are unpacked into sequences."""
    dimensions = call.dimensions("data")
    call.freeze(dimensions[0], "as steps of sequences")
    shape, lengths = (r.shape for r in call.results)
    sequences = [FixedPart(n, "steps of sequences") for n in shape[:2]]
    return [[*sequences, *dimensions[1:]], [FixedPart(lengths[0], "sequences")]]


@rule("grid_sampler_2d", "grid_sampler_3d")
def grid_sample(call: Call) -> Results:
    """Values are interpolated at positions in space given by the data."""
    batch, channels, *space = call.dimensions("input")
    of_grid, *grid = call.dimensions("grid")
    for dimension in (*space, *grid):
        call.freeze(dimension, "as a position in space")
    positions = [FixedPart(n, f"positions made by {call.name}") for n in call.results[0].shape[2:]]
    return [[call.unify(batch, of_grid), channels, *positions]]
