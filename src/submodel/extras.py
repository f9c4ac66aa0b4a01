"""Packages that not every machine has: which extra brings them, said in a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from submodel.errors import SubmodelError

__all__ = ["MissingExtraError", "needs_extra"]


class MissingExtraError(SubmodelError):
    """A package that only some machines need is not installed here."""


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Around the imports that an extra of `submodel` brings.

    Args:
        extra: The extra that installs what is imported, as ``server``.
        purpose: What it is needed for, as the beginning of a sentence.

    >>> with needs_extra("server", "a figure"):
    ...     import no_such_package
    Traceback (most recent call last):
    submodel.extras.MissingExtraError: a figure needs the package 'no_such_package': ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise MissingExtraError(
            f"{purpose} needs the package {package!r}: pip install 'submodel[{extra}]'"
        ) from None
