"""Mutations of valid bytes, anywhere or at the structure of the format.

A case is a function of a reader's name and a number, so each can be repeated.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

Mutation = Callable[[Random, bytes], bytes]

_EXTREME = (b"\0", b"\xff", b"\x7f", b"\x80", b"\0" * 4, b"\xff" * 4, b"\0" * 8, b"\xff" * 8,
            b"\x7f" + b"\xff" * 7, b"\xff" * 7 + b"\x7f", b"\0\0\0\x80", b"\x80\0\0\0")  # fmt: skip
_VALUES = (
    "0", "-1", "1", "2", "1.5", "-0.0", "1e400", "-1e400", "1e308", "5e-324", "NaN", "Infinity",
    "-Infinity", "nan", "inf", "null", "true", "false", '""', '"x"', '"\\u0000"', '"\\ud800"',
    "[]", "{}", "[[]]", '{"": 1}', str(2**31), str(2**53), str(2**63), str(2**64), str(-(2**63)),
    "9" * 30, "9" * 400, "9" * 5000, "1_000", "0x10", '"1/0"', '"1/3"', "1979-05-27",
)  # fmt: skip
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d[\d.eE+_-]*|\btrue\b|\bfalse\b|\bnull\b|\[\]|\{\}')


def draws(name: str, number: int) -> Random:
    """Make the random generator of a case."""
    return Random(hashlib.sha256(f"{name} {number}".encode()).digest())


def anywhere(rng: Random, data: bytes) -> bytes:
    """Flip, cut out, double, move or replace a few bytes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 2, 4, 8, 64, 1000)))
        part, kind = data[at:end], rng.randrange(7)
        if kind == 0 and part:
            part = bytes([part[0] ^ 1 << rng.randrange(8)]) + part[1:]
        elif kind == 1:
            part = b""
        elif kind == 2:
            part = part * rng.choice((2, 3, 50))
        elif kind == 3:
            part = rng.choice(_EXTREME)
            end = at + len(part)
        elif kind == 4:
            part = rng.randbytes(len(part))
        elif kind == 5:
            part = data[(other := rng.randrange(len(data) + 1)) : other + len(part)]
        elif rng.random() < 0.3:
            return data[:at]
        data = data[:at] + part + data[end:]
    return data


def text(rng: Random, data: bytes) -> bytes:
    """Replace values of JSON or TOML by extreme ones, exchange or nest them; move or drop lines."""
    content = data.decode("utf-8", "surrogateescape")
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        tokens = list(_TOKEN.finditer(content))
        kind = rng.randrange(8)
        if kind == 0 or not tokens:
            return anywhere(rng, content.encode("utf-8", "surrogateescape"))
        token = rng.choice(tokens)
        if kind == 1:
            new = rng.choice(tokens).group()
        elif kind == 2 and rng.random() < 0.2:
            opened, closed = rng.choice((("[", "]"), ('{"a":', "}"), ('{"": "Product", "parts": [',
                                         "]}"), ("{a=", "}")))  # fmt: skip
            depth = rng.choice((10, 190, 500, 990, 3000, 100_000))
            new = opened * depth + token.group() + closed * rng.choice((depth, 0))
        elif kind == 3:
            new = json.dumps(rng.choice(("x" * 100_000, "é\n\x1b[31m", "", "../../x", "classes")))
        elif kind == 4:
            lines = content.splitlines(keepends=True)
            place = rng.randrange(len(lines))
            lines[place : place + 1] = rng.choice(([], [lines[place]] * 2, [rng.choice(lines)]))
            content = "".join(lines)
            continue
        else:
            new = rng.choice(_VALUES)
        content = content[: token.start()] + new + content[token.end() :]
    return content.encode("utf-8", "surrogateescape")


def safetensors(rng: Random, data: bytes) -> bytes:
    """Change the head as text, with its length fixed or not, and JSON metadata as well."""
    if rng.random() < 0.3 or len(data) < 8:
        return anywhere(rng, data)
    length = int.from_bytes(data[:8], "little")
    head, body = data[8 : 8 + length], data[8 + length :]
    with suppress(ValueError):
        parts = json.loads(head)
        inner = parts.get("__metadata__", {})
        if inner and rng.random() < 0.6:
            name = rng.choice(list(inner))
            inner[name] = text(rng, inner[name].encode()).decode("utf-8", "replace")
            head = json.dumps(parts).encode()
        else:
            head = text(rng, head)
    length = len(head) if rng.random() < 0.9 else rng.choice((0, 2**63, len(head) + 1, 2**26))
    return (
        length.to_bytes(8, "little") + head + (body if rng.random() < 0.8 else anywhere(rng, body))
    )


def npz(rng: Random, data: bytes) -> bytes:
    """Change heads or values of members in a valid archive, or damage the archive."""
    if rng.random() < 0.3:
        return anywhere(rng, data)
    members = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(list(members))
    content = members[name]
    kind = rng.randrange(4)
    if kind == 0:
        members[name] = anywhere(rng, content)
    elif kind == 1:
        members[rng.choice(("z.npy", "x", "y", "x.npy"))] = members.pop(name)
    else:
        length = int.from_bytes(content[8:10], "little")
        head = content[10 : 10 + length].decode("latin-1").replace("'", '"')
        head = text(rng, head.encode()).decode("utf-8", "replace").replace('"', "'")
        kinds = (
            "<f4",
            "<i8",
            ">f8",
            "|O",
            "|S3",
            "<U2",
            "<c8",
            "<M8[s]",
            "|b1",
            "<f2",
            "|V0",
            "<u2",
        )
        if kind == 2:
            head = re.sub(r"'[<>|=]?\w\d+'", f"'{rng.choice(kinds)}'", head, count=1)
        encoded = head.encode("latin-1", "replace")[: 2**16 - 1]
        count = struct.pack("<H", len(encoded))
        members[name] = content[:8] + count + encoded + content[10 + length :]
    packing = rng.choice((0, 0, 8, 8, 8, 12, 14))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return made.getvalue()


def png(rng: Random, data: bytes) -> bytes:
    """Change, double, drop or move chunks with valid checksums, or any bytes."""
    if data[:4] != b"\x89PNG" or rng.random() < 0.3:
        return anywhere(rng, data)
    chunks, at = [], 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    place = rng.randrange(len(chunks))
    kind, content = chunks[place]
    choice = rng.randrange(6)
    if choice == 0:
        chunks.insert(rng.randrange(len(chunks) + 1), (kind, content))
    elif choice == 1 and kind == b"IHDR" and len(content) == 13:
        sizes = [rng.choice((0, 1, 4, 5000, 9000, 20_000, 2**31 - 1, 2**32 - 1)) for _ in "xy"]
        rest = bytes(rng.choice((0, 1, 2, 3, 4, 6, 8, 16, 255)) for _ in range(5))
        ends = rest if rng.random() < 0.5 else content[8:]
        chunks[place] = (kind, struct.pack(">II", *sizes) + ends)
    elif choice == 2:
        names = (b"PLTE", b"tRNS", b"iCCP", b"zTXt", b"iTXt", b"acTL", b"fcTL", b"eXIf", b"gAMA",
                 b"pHYs", b"fdAT", b"IEND", b"xxxx")  # fmt: skip
        body = rng.choice((content, rng.randbytes(rng.randrange(64)), b"x\0\0" + zlib.compress(
            bytes(rng.choice((10, 100_000, 5_000_000))))))  # fmt: skip
        chunks.insert(rng.randrange(len(chunks) + 1), (rng.choice(names), body))
    else:
        chunks[place] = (kind, anywhere(rng, content))
    parts = [data[:8]]
    for kind, content in chunks:
        parts += [len(content).to_bytes(4, "big"), kind, content]
        parts.append(zlib.crc32(kind + content).to_bytes(4, "big"))
    return b"".join(parts)


def archive(rng: Random, data: bytes) -> bytes:
    """Change headers of a tar with valid checksums; compress it again, or damage the compressed
    file.
    """
    if rng.random() < 0.2:
        return anywhere(rng, data)
    content = bytearray(gzip.decompress(data))
    for _ in range(rng.choice((1, 1, 2, 4))):
        heads = [
            at
            for at in range(0, len(content) - 511, 512)
            if content[at + 257 : at + 262] == b"ustar"
        ]
        if not heads or rng.random() < 0.2:
            content = bytearray(anywhere(rng, bytes(content)))
            continue
        at = rng.choice(heads)
        start, length = rng.choice(((0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100),
                                    (257, 8), (345, 155)))  # fmt: skip
        new = rng.choice((
            b"77777777777\0", b"00000000000\0", b"-0000000001\0", b"\x80\0\0\0\x7f" + b"\xff" * 7,
            b"\xff" * 12, rng.randbytes(length), b"x", b"g", b"L", b"S", b"K", b"2", b"../../x\0",
            b"/etc/x\0", "é".encode(), b"data_batch_1.bin\0",
        ))[:length]  # fmt: skip
        content[at + start : at + start + len(new)] = new
        content[at + 148 : at + 156] = b" " * 8
        total = sum(content[at : at + 512])
        content[at + 148 : at + 156] = f"{total:06o}\0 ".encode()[:8]
    with suppress(tarfile.TarError, OSError):
        return gzip.compress(bytes(content), 1)
    return bytes(content)


def several(*mutations: Mutation) -> Mutation:
    """Draw one of several mutations for each case."""
    return lambda rng, data: rng.choice(mutations)(rng, data)


def spliced(rng: Random, seeds: Sequence[bytes], mutation: Mutation) -> bytes:
    """Mutate one of the valid files, sometimes made of the halves of two."""
    data = rng.choice(seeds)
    if rng.random() < 0.03:
        other = rng.choice(seeds)
        return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]
    return mutation(rng, data)
