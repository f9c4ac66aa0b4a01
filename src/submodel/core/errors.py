"""Errors that a user can correct: each states the mistake in a sentence, without a traceback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = [
    "CallbackError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DivergedError",
    "Interruption",
    "LostProcessError",
    "PlanError",
    "SilentRoundError",
    "SubmodelError",
    "plain",
]


def plain(text: object, longest: int = 500) -> str:
    r"""Sanitise untrusted text for display: printable, on one line, not too long.

    >>> plain("a\n\x1b[31mred", 7)
    'a [31m…'
    """
    whole_text = str(text)
    some = whole_text[: 8 * longest]  # the text may be endless
    line = "".join(c for c in " ".join(some.split()) if c.isprintable())
    whole = len(line) <= longest and len(some) == len(whole_text)
    return line if whole else line[: longest - 1] + "…"


class SubmodelError(Exception):
    """A problem that the user can correct; the text names the given and the allowed values."""


class ConfigError(SubmodelError):
    """One or more mistakes in a configuration, each as ``key.path: mistake``.

    Args:
        problems: the mistake, or all of them.

    >>> print(ConfigError(["local.lr: -1 is not positive", "name: too long"]))
    local.lr: -1 is not positive
    name: too long
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


def refuse(problems: Sequence[str]) -> None:
    """Raise `ConfigError` if there are any problems."""
    if problems:
        raise ConfigError(problems)


@contextmanager
def wrap_errors(text: str, kind: type[SubmodelError]) -> Iterator[None]:
    """Turn any error that foreign code raises in this context into one of this kind.

    >>> with wrap_errors("model.name: 'my:Net' fails", SubmodelError):
    ...     1 / 0
    Traceback (most recent call last):
    submodel.core.errors.SubmodelError: model.name: 'my:Net' fails: ZeroDivisionError: division ...
    """
    try:
        yield
    except SubmodelError:  # its text already names the remedy
        raise
    except Exception as error:
        raise kind(f"{text}: {type(error).__name__}: {error}") from error


class DataError(SubmodelError):
    """Data that is unfit for training: not finite, empty, of the wrong shape."""


class PlanError(SubmodelError):
    """A stored plan, or stored axes of a model, that cannot be used."""


class CheckpointError(SubmodelError):
    """A checkpoint that is damaged, missing or of another run."""


class LostProcessError(SubmodelError):
    """A process of the run's group was lost; the others cannot finish the round."""


class SilentRoundError(SubmodelError):
    """No device answered in time; the same round may be tried again."""


class Interruption(SubmodelError):  # noqa: N818 - not an error, but it ends the command
    """The user stopped the run; its last completed round is saved."""


class DivergedError(SubmodelError):
    """Every update of a round was refused; there is nothing to merge."""


class CallbackError(SubmodelError):
    """A callback or a metric of the user failed; the text names it."""
