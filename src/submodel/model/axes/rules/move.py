"""Rules for operators that move values: views, cuts and joins, constants."""

from __future__ import annotations

from submodel.model.axes.expression import (
    ONE,
    Atom,
    Concatenation,
    Expression,
    Fixed,
    concatenation,
    product,
)
from submodel.model.axes.rules.call import Call, Results, pointwise, rule

rule("alias", "clone", "detach", "lift_fresh", "lift_fresh_copy", "_to_copy", moves=True)(pointwise)
rule("copy", "fill", "zero", "masked_fill", "floor_divide", "polar", "complex")(pointwise)
rule("hardswish", "log_sigmoid_forward", "native_dropout", "_prelu_kernel", "threshold")(pointwise)
rule("_conj", "_neg_view", "_conj_physical", "resolve_conj", "resolve_neg", moves=True)(pointwise)


@rule("_local_scalar_dense", "_assert_async", "_assert_scalar", "_assert_tensor_metadata")
def nothing(call: Call) -> Results:  # noqa: ARG001 - the form of a rule
    """A single value, or none, comes out."""
    return []


@rule("zeros_like", "ones_like", "full_like", "empty_like", makes=True)
def constant_like(call: Call) -> Results:
    """One value everywhere, as many as another tensor has; its values are not read."""
    known = call.record.seen(call["self"])
    return constant(call) if known is None else [known]


@rule("zeros", "ones", "full", "empty", "scalar_tensor", "empty_strided", makes=True)
@rule("new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided", makes=True)
def constant(call: Call) -> Results:
    """One value everywhere: no order to keep, so its dimensions are whatever they meet."""
    return [[call.record.algebra.fresh(n) for n in result.shape] for result in call.results]


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", "_reshape_copy", "view_copy", moves=True)
def view(call: Call) -> Results:
    """Runs of dimensions of equal size are merged, then split in the new way."""
    known, new = call.known("self"), list(call.results[0].shape)
    old = list(known.dimensions)
    if 0 in new:
        return [[Fixed(n) for n in new]]
    result: list[Expression] = []
    while new:
        run: list[Expression] = [old.pop(0) if old else ONE]
        sizes = [new.pop(0)]
        have, want = run[0].size, sizes[0]
        while have != want:
            if have < want:
                run.append(old.pop(0))
                have *= run[-1].size
            else:
                sizes.append(new.pop(0))
                want *= sizes[-1]
        merged = product(map(call.record.algebra.resolve, run))
        if len(run) > 1 and not known.weight:
            call.record.products.append(merged)
        result += call.factor(merged, sizes)
    return [result]


@rule("view.dtype")
def view_as_type(call: Call) -> Results:
    """Other numbers in the same memory: only if each stays one number."""
    if call["self"].shape != call.results[0].shape:
        call.freeze(call.dimensions("self")[-1], "as another type")
        return [[*call.dimensions("self")[:-1], Fixed(call.results[0].shape[-1])]]
    return [call.dimensions("self")]


@rule("as_strided", moves=True)
def as_strided(call: Call) -> Results:
    """Only the tensor itself is understood; other windows on its memory freeze it."""
    own, result = call["self"], call.results[0]
    if (own.shape, own.stride(), own.storage_offset()) == (
        result.shape,
        result.stride(),
        result.storage_offset(),
    ):
        return [call.dimensions("self")]
    for dimension in call.dimensions("self"):
        call.freeze(dimension, "by its place in memory")
    return [[Fixed(n, f"made by {call.name}") for n in result.shape]]


@rule("expand", moves=True)
def expand(call: Call) -> Results:
    """Copies along a dimension of size one are alike: no order to keep."""
    result = [call.record.algebra.fresh(n) for n in call.results[0].shape]
    own = call.dimensions("self")
    for d, dimension in enumerate(own, start=len(result) - len(own)):
        if dimension.size == result[d].size:
            result[d] = dimension
    call.record.copies |= {d for d in result if isinstance(d, Atom) and d not in own}
    return [result]


@rule("repeat")
def repeat(call: Call) -> Results:
    """The copies come one after another: copy number x position."""
    own = call.dimensions("self")
    padded = [ONE] * (len(call["repeats"]) - len(own)) + list(own)
    return [
        [
            product([call.record.algebra.fresh(n), d])
            for n, d in zip(call["repeats"], padded, strict=True)
        ]
    ]


@rule("permute", moves=True)
def permute(call: Call) -> Results:
    """The dimensions in another order."""
    own = call.dimensions("self")
    return [[own[d] for d in call["dims"]]]


@rule("transpose", moves=True)
def transpose(call: Call) -> Results:
    """Two dimensions trade places."""
    own = list(call.dimensions("self"))
    if own:
        one, other = call["dim0"], call["dim1"]
        own[one], own[other] = own[other], own[one]
    return [own]


@rule("t", moves=True)
def t(call: Call) -> Results:
    """The transposed matrix."""
    return [call.dimensions("self")[::-1]]


@rule("unsqueeze", moves=True)
def unsqueeze(call: Call) -> Results:
    """One more dimension of size one."""
    own = list(call.dimensions("self"))
    own.insert(call["dim"] % (len(own) + 1), ONE)
    return [own]


@rule("squeeze", moves=True)
def squeeze(call: Call) -> Results:
    """Without (some) dimensions of size one."""
    own = call.dimensions("self")
    given = call.get("dim", range(len(own)))
    gone = {d % max(len(own), 1) for d in ([given] if isinstance(given, int) else given)}
    return [[e for d, e in enumerate(own) if d not in gone or e.size != 1]]


@rule("cat")
def cat(call: Call) -> Results:
    """One after another along a dimension, alike along the others."""
    tensors = [t for t in call["tensors"] if tuple(t.shape) != (0,)]  # torch skips such ones
    if not tensors:
        return [[Fixed(0)]]
    known = [call.record.of(t).dimensions for t in tensors]
    dim = call["dim"] % len(known[0])
    constant = [call.record.of(t).constant for t in tensors]
    call.record.starts += [k[dim] for k, made in zip(known, constant, strict=True) if made]
    call.record.joined.update(id(result) for result in call.results)
    result = call.broadcast([[*k[:dim], ONE, *k[dim + 1 :]] for k in known])
    result[dim] = concatenation(call.record.algebra.resolve(k[dim]) for k in known)
    return [result]


@rule("stack")
def stack(call: Call) -> Results:
    """A new dimension counts the tensors."""
    result = call.broadcast([call.record.of(t).dimensions for t in call["tensors"]])
    words = f"the tensors joined by {call.name}"
    result.insert(call["dim"] % (len(result) + 1), Fixed(len(call["tensors"]), words))
    return [result]


@rule("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", moves=True)
def split(call: Call) -> Results:
    """Consecutive pieces of one dimension."""
    own = call.dimensions("self")
    dim = call["dim"] % len(own)
    if call.results[0].shape[dim] == 1:
        call.note_steps("self", dim)
    pieces = call.pieces(own[dim], [r.shape[dim] for r in call.results])
    return [[*own[:dim], piece, *own[dim + 1 :]] for piece in pieces]


@rule("slice", moves=True)
def slice_(call: Call) -> Results:
    """A piece of one dimension, or every n-th unit of it."""
    own = list(call.dimensions("self"))
    dim, step = call["dim"] % len(own), call["step"]
    size, length = own[dim].size, call.results[0].shape[dim]
    if length == 1:
        call.note_steps("self", dim)
    start = min(max(s + size if (s := call["start"] or 0) < 0 else s, 0), size)
    if step == 1:
        own[dim] = call.pieces(own[dim], [start, length, size - start - length])[1]
    elif start < step and length * step == size:
        own[dim], phase = call.factor(own[dim], [length, step])
        call.freeze(phase)
    else:
        call.freeze(own[dim])
        own[dim] = Fixed(length, f"made by {call.name}")
    return [own]


@rule("select.int", moves=True)
def select(call: Call) -> Results:
    """One unit, told by its position."""
    own = list(call.dimensions("self"))
    dim = call["dim"] % len(own)
    chosen = own.pop(dim)
    call.note_steps("self", dim)
    _freeze_at(call, chosen, call["index"] % chosen.size)
    return [own]


def _freeze_at(call: Call, expression: Expression, position: int) -> None:
    """Freeze the part of a dimension in which a position lies."""
    known = call.record.algebra.resolve(expression)
    if not isinstance(known, Concatenation):
        return call.freeze_if_read(known)
    for part in known.parts:
        if position < part.size:
            return _freeze_at(call, part, position)
        position -= part.size
    return None


@rule("unbind.int", moves=True)
def unbind(call: Call) -> Results:
    """Every unit on its own."""
    own = list(call.dimensions("self"))
    call.note_steps("self", call["dim"])
    call.freeze(own.pop(call["dim"] % len(own)))
    return [own for _ in call.results]


@rule("glu")
def glu(call: Call) -> Results:
    """One half gates the other."""
    own = list(call.dimensions("self"))
    dim = call["dim"] % len(own)
    one, other = call.pieces(own[dim], [own[dim].size // 2] * 2)
    own[dim] = call.unify(one, other)
    return [own]


@rule("constant_pad_nd")
def pad(call: Call) -> Results:
    """Equal values before and after: parts without an order of their own."""
    own, pads = list(call.dimensions("self")), call["pad"]
    for k in range(len(pads) // 2):
        dim, (before, after) = len(own) - 1 - k, pads[2 * k : 2 * k + 2]
        cuts = [max(-before, 0), own[dim].size + min(before, 0) + min(after, 0), max(-after, 0)]
        kept = call.pieces(own[dim], cuts)[1]
        fresh = call.record.algebra.fresh
        own[dim] = concatenation([fresh(max(before, 0)), kept, fresh(max(after, 0))])
    return [own]


@rule("view_as_complex")
def view_as_complex(call: Call) -> Results:
    """The last dimension is (real, imaginary)."""
    own = call.dimensions("self")
    call.freeze(own[-1], "as real and imaginary part")
    return [own[:-1]]


@rule("view_as_real")
def view_as_real(call: Call) -> Results:
    """A new last dimension is (real, imaginary)."""
    return [[*call.dimensions("self"), Fixed(2, "the real and the imaginary part")]]
