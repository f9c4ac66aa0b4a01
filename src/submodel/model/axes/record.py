"""The record of a trace: the dimensions of every tensor, and the reasons why some are not cut.

Some reasons are inherent, for the pixels of a kernel or the words of an embedding. Others come from
one line of the model and are stored with that line and a proposed change.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from submodel.model.axes.layout import Algebra, Along, FixedPart, Layout, atoms

Dimensions = tuple[Layout, ...]
SHARED = "it shares a part of its memory with another tensor"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One tensor of a trace, with its dimensions and further properties."""

    tensor: Tensor  # kept alive, so that its id stays unique during the trace
    dimensions: Dimensions
    weight: bool = False  # a parameter, a buffer or a view of one: zero where it is masked
    constant: bool = False  # does not depend on an input or a parameter
    pending: tuple[tuple[Layout, str], ...] = ()  # (dimension, reason) to freeze at the first read


@dataclass
class Record:
    """The tensors of a trace, the algebra of their dimensions, and collected remarks."""

    algebra: Algebra = field(default_factory=Algebra)
    tensors: dict[int, TensorFacts] = field(default_factory=dict)
    weights: set[int] = field(default_factory=set)  # ids of the parameters and buffers
    copied_weights: list[Tensor] = field(default_factory=list)  # of the running copies
    storages: dict[int, list[Tensor]] = field(default_factory=dict)  # of parameters and buffers
    read: dict[int, int] = field(default_factory=dict)  # id of a tensor -> order of its first read
    mixes: list[tuple[Layout, str]] = field(default_factory=list)
    groups: list[Layout] = field(default_factory=list)
    products: list[Layout] = field(default_factory=list)  # of the dimensions of activations
    copies: set[Layout] = field(default_factory=set)  # dimensions of repeated values
    steps: set[int] = field(default_factory=set)  # sizes of dimensions read position by position
    joined_tensors: set[int] = field(default_factory=set)  # ids of concatenated tensors
    starts: list[Layout] = field(default_factory=list)  # dimensions where weights meet constants

    def add(
        self,
        tensor: Tensor,
        dimensions: Sequence[Layout],
        weight: bool = False,
        constant: bool = False,
        pending: Sequence[tuple[Layout, str]] = (),
    ) -> None:
        """Record a tensor; the sizes of the dimensions must be its own."""
        sizes = tuple(d.size for d in dimensions)
        if sizes != tuple(tensor.shape):
            raise ValueError(f"dimensions of sizes {sizes} for a tensor {tuple(tensor.shape)}")
        self.tensors[id(tensor)] = TensorFacts(
            tensor, tuple(dimensions), weight, constant, tuple(pending)
        )

    def add_weight(self, tensor: Tensor) -> None:
        """Record a parameter or buffer; integers are positions or counts and stay fixed.

        Two with the same memory have the same dimensions; if they overlap otherwise, both are
        fixed.
        """
        self.weights.add(id(tensor))
        if id(tensor) in self.tensors:
            return
        dense = tensor.layout is torch.strided
        free = dense and (tensor.is_floating_point() or tensor.is_complex())
        reason = "it holds whole numbers" if dense else "it is sparse"
        dimensions = [self.algebra.fresh(n) if free else FixedPart(n, reason) for n in tensor.shape]
        self.add(tensor, self._owner_dimensions(tensor) or dimensions, weight=True)
        if dense and tensor.numel():
            self.storages.setdefault(storage(tensor), []).append(tensor)

    def add_copy(self, tensor: Tensor, original: Tensor) -> None:
        """Record a copy of a parameter or buffer; reading it counts as reading the original."""
        self.copied_weights.append(tensor)
        self.weights.add(id(tensor))
        self.tensors[id(tensor)] = self.tensors[id(original)]
        if tensor.layout is torch.strided and tensor.numel():
            self.storages.setdefault(storage(tensor), []).append(tensor)

    def is_read(self, tensor: Tensor) -> bool:
        """Return whether an operator has read a parameter or buffer, or a copy of it."""
        return id(self.tensors[id(tensor)].tensor) in self.read

    def add_fixed(self, tensor: Tensor, reason: str) -> None:
        """Record a tensor whose dimensions all keep their order."""
        self.add(tensor, [FixedPart(n, reason) for n in tensor.shape])

    def of(self, tensor: Tensor) -> TensorFacts:
        """The entry of a tensor that an operator reads.

        A tensor that no operator made and that is not a parameter holds constants, so it is fixed.
        If it shares memory with a parameter (``weight.data``), it is that parameter, or freezes it.
        """
        facts = self.tensors.get(id(tensor))
        if facts is None:
            dimensions = self._owner_dimensions(tensor, read=True)
            if dimensions is None:
                self.add_fixed(tensor, "a constant that is neither a parameter nor a buffer")
            else:
                self.add(tensor, dimensions, weight=True)
            facts = self.tensors[id(tensor)]
        for expression, reason in facts.pending:
            self.algebra.freeze(expression, reason)
        self.read.setdefault(id(facts.tensor), len(self.read))
        return facts

    def dimensions_of(self, tensor: Tensor) -> Dimensions | None:
        """The dimensions of a recorded tensor; this does not count as reading it."""
        facts = self.tensors.get(id(tensor))
        return None if facts is None else facts.dimensions

    def starting(self) -> set[Along]:
        """Axes that only occur in constants, as for a state before its first step."""
        starting_atoms = {a for start in self.starts for a in atoms(self.algebra.resolve(start))}
        for facts in self.tensors.values() if starting_atoms else ():
            if not (facts.weight or facts.constant or id(facts.tensor) in self.joined_tensors):
                starting_atoms.difference_update(
                    a for d in facts.dimensions for a in atoms(self.algebra.resolve(d))
                )
        return starting_atoms

    def _owner_dimensions(self, tensor: Tensor, read: bool = False) -> Dimensions | None:
        """The dimensions of the parameter that shares memory with a tensor; None if none does."""
        if tensor.layout is not torch.strided:
            return None
        for owner in self.storages.get(storage(tensor), ()):
            if not _overlap(tensor, owner):
                continue  # pieces of one buffer, as in recurrent layers on accelerators
            facts = self.of(owner) if read else self.tensors[id(owner)]
            if geometry(tensor) == geometry(owner):
                return facts.dimensions
            for expression in facts.dimensions:
                self.algebra.freeze(expression, SHARED)
            return tuple(FixedPart(n, SHARED) for n in tensor.shape)
        return None

    def mix(self, expression: Layout, words: str) -> None:
        """Note that an operator combines the units of these axes, so masking is not exact."""
        self.mixes.append((expression, words))


def flat_tensors(value: Any) -> list[Tensor]:
    """The tensors in the arguments or results of an operator, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [t for v in value for t in flat_tensors(v)] if isinstance(value, list | tuple) else []


def storage(tensor: Tensor) -> int:
    """A number that identifies the memory of a tensor on every device."""
    return int(tensor.untyped_storage()._cdata)


def geometry(tensor: Tensor) -> tuple[object, ...]:
    """Shape, strides and offset of a tensor."""
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether the memory ranges of two tensors overlap."""
    spans = []
    for t in (one, other):
        steps = zip(t.shape, t.stride(), strict=True)
        start = t.storage_offset()
        spans.append((start, start + sum((n - 1) * step for n, step in steps)))
    (a, b), (c, d) = spans
    return a <= d and c <= b


WRITTEN_SIZE = "a number written in the code makes its size"

_NATURAL = (
    "it meets an ",
    "it holds whole numbers",
    "it is sparse",
    "read by embedding",
    "read by _embedding_bag",
    "positions made by",
    "nothing reads it",
    "frozen by the user",
    "bags",
    "sequences",
    "steps of sequences",
)
_OF_SPACE = ("as a kernel", "as a position in space", "as positions or frequencies")

_ADVICE = (
    (WRITTEN_SIZE, "make it an attribute of the module, or -1, or read it from a shape"),
    ("no rule", "use operators that have a rule, or declare the axes"),
    ("its rule does not cover", "use operators that have a rule, or declare the axes"),
    ("neither a parameter nor a buffer", "register the tensor as a buffer, so that it is cut too"),
    ("made by arange", "compute it once and register it as a buffer, so that it is cut too"),
    ("do not line up", "view and split it alike everywhere, or make the parts layers of their own"),
    ("looked up by index", "split, chunk or slice by a stored size instead of looking up by index"),
    ("by position", "do not select its units by their position"),
    ("by its place in memory", "use views, unfold or indices instead of as_strided"),
    ("one unit", "split it in equal parts, or make the single unit a layer of its own"),
    ("have the same number as size", "store two numbers, one for each of the dimensions"),
)


class Reason(str):
    """The reason why a dimension is not cut, with the responsible line of the model's code."""

    __slots__ = ("line",)
    line: str

    def __new__(cls, text: str, line: str) -> Reason:
        """Make a reason of a text and a line."""
        reason = super().__new__(cls, text)
        reason.line = line
        return reason


def line_of(reason: str) -> str:
    """The line of the model's code that causes a reason; empty if unknown."""
    return reason.line if isinstance(reason, Reason) else ""


def is_natural(reason: str) -> bool:
    """Return whether no change of the code would help.

    >>> is_natural("read by convolution, as a kernel"), is_natural("read by flip, by position")
    (True, False)
    """
    return reason.startswith(_NATURAL) or reason.endswith(_OF_SPACE)


def advice(reason: str) -> str:
    """A proposed change of the code; empty if there is none."""
    hints = (words for key, words in _ADVICE if key in reason)
    return "" if is_natural(reason) else next(hints, "")


def to_change(
    frozen: Mapping[str, str], kept_whole: Mapping[str, str], lines: Mapping[str, str]
) -> Iterator[str]:
    """Messages with the lines to change, the reason and a proposed change."""
    places_by_words: dict[str, list[str]] = {}
    for where, reason in (*frozen.items(), *kept_whole.items()):
        if lines.get(where):
            words = "; ".join(filter(None, [f"{lines[where]}: {reason}", advice(reason)]))
            places_by_words.setdefault(words, []).append(where)
    for words, places in places_by_words.items():
        more = f" and {len(places) - 2} more" if len(places) > 2 else ""
        yield f"{words} ({', '.join(places[:2])}{more})"


_LIBRARIES = tuple(f"{Path(file).parent}/" for file in (torch.__file__, str(Path(__file__).parent)))


@cache
def _is_library(file: str) -> bool:
    """Return whether a file belongs to torch, to this library, or to no file at all."""
    return file.startswith(_LIBRARIES) or file.startswith("<")


def source_line(nearest: int = 0) -> str:
    """The innermost running line of code that is neither torch's nor this library's.

    With ``nearest``, only the caller that many frames up counts; empty if that is library code.

    >>> "doctest.py" in source_line()
    True
    """
    frame: FrameType | None = sys._getframe(1 + nearest)
    while frame is not None:
        code = frame.f_code
        if not _is_library(code.co_filename):
            return _text(code.co_filename, frame.f_lineno, code.co_qualname)
        frame = None if nearest else frame.f_back
    return ""


def failing_line(problem: BaseException) -> str:
    """The innermost such line in the traceback of an error; empty if there is none."""
    innermost = ""
    for frame, line in traceback.walk_tb(problem.__traceback__):
        code = frame.f_code
        if not _is_library(code.co_filename):
            innermost = _text(code.co_filename, line, code.co_qualname)
    return innermost


def _text(file: str, line: int, function: str) -> str:
    parts = Path(file).parts
    return f"{'/'.join(parts[-2:])}:{line} in {function}"
