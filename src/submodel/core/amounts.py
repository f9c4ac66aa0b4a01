"""Read and write amounts in the spelling of people: 2GB, 1.2 M, 1/4."""

from __future__ import annotations

import re
from numbers import Real

from submodel.core.errors import ConfigError
from submodel.core.options import fraction

__all__ = ["duration", "parse_amount", "parse_capacity", "si"]

_LONG = 120  # seconds or minutes, from which the next unit is easier to read
_UNITS = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
          "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}  # fmt: skip


def parse_amount(text: str) -> int:
    """Parse a number with an optional prefix and unit.

    >>> parse_amount("2GB"), parse_amount("512 MiB"), parse_amount("1.5e9")
    (2000000000, 536870912, 1500000000)
    """
    match = re.fullmatch(r"\s*([\d.]+(?:e[+-]?\d+)?)\s*([kmgt]i?|)(?:b|flops?)?\s*", text, re.I)
    try:
        amount = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    except (ValueError, OverflowError):  # 1.2.3 is not a number, 1e999 is not finite
        amount = 0
    if amount <= 0:
        raise ConfigError(f"{text!r} is not an amount such as 2GB, 512MiB or 1.5e9")
    return amount


def parse_capacity(capacity: object) -> float:
    """Parse a capacity, given as a number or a fraction.

    >>> parse_capacity("1/4"), parse_capacity(1)
    (0.25, 1.0)
    """
    value = fraction(capacity.strip() if isinstance(capacity, str) else capacity)
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise ConfigError(f"capacity: {capacity!r} is not a number in (0, 1]")
    if isinstance(value, str) or not 0 < float(value) <= 1:
        raise ConfigError(
            f"capacity: {capacity if capacity != '' else repr(capacity)} is not in (0, 1]"
        )
    return float(value)


def si(value: float, unit: str = "") -> str:
    """Format a number with a prefix, in three digits.

    >>> si(1234567, "B"), si(12), si(4000, "B")
    ('1.23 MB', '12', '4 kB')
    """
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".rstrip()


def duration(seconds: float) -> str:
    """Format a time in a readable unit.

    >>> duration(0.1234), duration(75), duration(600), duration(7500), duration(36000)
    ('0.12 s', '75 s', '10 min', '2 h 5 min', '10 h')
    """
    if seconds < _LONG:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < _LONG:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 10:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours + minutes / 60:.0f} h" if hours < 72 else f"{hours / 24:.1f} days"
