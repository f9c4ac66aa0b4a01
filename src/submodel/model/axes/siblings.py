"""Modules of a list that a forward passes by, such as experts that no example chose.

Nothing would be known of them, and a cut would leave them whole, among inputs that have become
narrower. They are run as a sibling was: of the same list, the same type and the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


Calls = dict[nn.Module, ModuleCall]
"""The first call of each module of a list."""


@contextmanager
def watch_calls(module: nn.Module) -> Iterator[Calls]:
    """Collect the calls of all modules that lie in lists or dictionaries of modules."""
    calls: Calls = {}
    with ExitStack() as undo:
        for layer_of_list in {child: None for siblings in _lists(module) for child in siblings}:

            def note(
                layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
            ) -> None:
                calls.setdefault(layer, ModuleCall(args, kwargs, result))

            undo.callback(layer_of_list.register_forward_hook(note, with_kwargs=True).remove)
        yield calls


def passed_by(
    module: nn.Module, calls: Calls, is_read: Callable[[nn.Module], bool]
) -> Iterator[tuple[nn.Module, ModuleCall]]:
    """The modules of lists that the forward has not run, each with the call of a sibling."""
    for siblings in _lists(module):
        for child in siblings:
            if child not in calls and not is_read(child):
                alike = (s for s in siblings if s in calls and _form(s) == _form(child))
                if (sibling := next(alike, None)) is not None:
                    yield child, calls[sibling]


def _lists(module: nn.Module) -> Iterator[list[nn.Module]]:
    for layer in module.modules():
        if isinstance(layer, nn.ModuleList | nn.ModuleDict):
            yield list(layer.children())


def _form(layer: nn.Module) -> tuple[object, ...]:
    """What siblings have in common: their type, and the names and shapes of their parameters."""
    return type(layer), tuple((name, p.shape) for name, p in layer.named_parameters())
