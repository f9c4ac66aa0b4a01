"""The format of a message: a safetensors file whose metadata holds the head as JSON.

Nothing is unpickled, and a reader in another language needs no more than those two formats.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from safetensors.torch import load, save
from torch import Tensor

from submodel.errors import SubmodelError, plain

VERSION = 2
_HEAD = "submodel"
_HEAD_ROOM, _LINE_ROOM = 1 << 14, 512  # bytes of any head, and of each of its lines

_T = TypeVar("_T")
# Integers that every reader of JSON takes exactly.
PositiveInteger = Annotated[int, Field(gt=0, lt=1 << 53)]
ExactInteger = Annotated[int, Field(gt=-1 << 53, lt=1 << 53)]


class WireError(SubmodelError):
    """A message that cannot be read, or says what it must not; its text can always be shown."""

    def __init__(self, text: object) -> None:
        super().__init__(plain(text))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_as(kind: type[_T], values: object) -> _T:
    """Values that a stranger sent as a dataclass; raises `WireError` if they cannot be one.

    >>> read_as(Limits, {"head": 16}).head
    16
    """
    try:
        values_of_kind: _T = _adapter(kind).validate_python(values)  # type: ignore[arg-type]
        return values_of_kind
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = plain(".".join(map(str, first["loc"])), 100) or "its head"
        what = first["msg"]
        if first["type"] != "missing":
            what += f", not {plain(reprlib.repr(first['input']), 60)}"
        raise WireError(f"{where}: {what[:1].lower()}{what[1:]}") from None


@dataclass(frozen=True)
class Limits:
    """How many bytes a message may have: its head, and in all."""

    head: int = 1 << 26
    whole: int = 1 << 40

    @classmethod
    def of(cls, values: int, names: Iterable[str] = (), lines: int = 0) -> Limits:
        """For so many bytes of values in tensors of these names, and so many lines of the head.

        A head may be a few times longer than any that we write, which is room enough for another
        version, or another language, to write its numbers at more length.
        """
        head = _HEAD_ROOM + _LINE_ROOM * lines + sum(_LINE_ROOM + 16 * len(n) for n in names)
        return cls(head, head + values)


@dataclass(frozen=True)
class Parcel:
    """A message: a head of plain values and named tensors."""

    head: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def to_bytes(self) -> bytes:
        """As it travels."""
        head = json.dumps({**self.head, "version": VERSION})
        return save({n: t.contiguous() for n, t in self.tensors.items()}, {_HEAD: head})

    @classmethod
    def from_bytes(cls, data: bytes, limits: Limits = Limits()) -> Parcel:  # noqa: B008 - frozen
        """What `to_bytes` wrote; raises `WireError` for anything else.

        >>> Parcel.from_bytes(Parcel({"kind": "report"}, {}).to_bytes()).head["kind"]
        'report'
        >>> Parcel.from_bytes(b"no message")
        Traceback (most recent call last):
        submodel.federation.wire.parcel.WireError: it cannot be read (its head is cut short)
        """
        length = int.from_bytes(data[:8], "little")
        if len(data) > limits.whole:
            raise WireError(f"it has {len(data):,} bytes; at most {limits.whole:,} are expected")
        if len(data) < 8 or length > len(data) - 8:
            raise WireError("it cannot be read (its head is cut short)")
        if length > limits.head:
            raise WireError(f"its head has {length:,} bytes; at most {limits.head:,} are expected")
        try:
            head = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_HEAD])
            tensors = load(data)
        except Exception as error:  # whatever reading a stranger's bytes raises
            raise WireError(f"it cannot be read ({type(error).__name__}: {plain(error)})") from None
        if not isinstance(head, dict) or head.get("version") != VERSION:
            version = head.get("version") if isinstance(head, dict) else head
            raise WireError(
                f"it speaks version {plain(reprlib.repr(version), 60)} of the format, not {VERSION}"
            )
        return cls(head, tensors)
