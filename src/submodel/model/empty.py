"""Modules without values: of a large model that lies in another process's memory, shapes alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def without_values() -> Iterator[None]:
    """Parameters of modules that are made in here have shapes alone; buffers have their values.

    >>> with without_values():
    ...     layer = nn.Linear(64, 64)
    >>> layer.weight.device
    device(type='meta')
    """
    register = nn.Module.register_parameter

    def register_empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = register_empty  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
