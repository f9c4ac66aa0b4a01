"""Optional packages: a missing one is an error that names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from submodel.core.errors import SubmodelError

__all__ = ["MissingExtraError", "needs_extra"]


class MissingExtraError(SubmodelError):
    """An optional package is not installed."""


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Name the extra of `submodel` to install if an import in this context fails.

    Args:
        extra: the extra that installs the imported package, such as ``server``.
        purpose: the use that needs it, as the beginning of a sentence.

    >>> with needs_extra("server", "a figure"):
    ...     import no_such_package
    Traceback (most recent call last):
    submodel.core.extras.MissingExtraError: a figure needs the package 'no_such_package': ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise MissingExtraError(
            f"{purpose} needs the package {package!r}: pip install 'submodel[{extra}]'"
        ) from None
