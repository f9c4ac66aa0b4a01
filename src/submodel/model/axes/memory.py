"""What a module remembers from one forward to the next, outside of its parameters and buffers.

A forward may keep its last state, a cache, a count or a size in attributes, or in lists and dicts
that attributes hold. (`keep` puts all of it back.)
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_Container = list[Any] | dict[Any, Any] | set[Any] | deque[Any]
_PLAIN = {list, dict, set, deque, tuple, OrderedDict, defaultdict}


class Memory:
    """The tensors in the attributes of all layers and in their plain containers, as they were.

    >>> net = nn.Linear(2, 2)
    >>> before = Memory(net)
    >>> net.last, net.in_features = torch.ones(2), 3
    >>> [tuple(tensor.shape) for tensor in before.new_tensors()]
    [(2,)]
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tensors = _tensors(_containers(module))
        self._buffers = [(b, b.detach().clone()) for b in module.buffers()]

    def new_tensors(self) -> list[Tensor]:
        """Tensors that the module holds now and did not before: a later forward may read them."""
        tensors = _tensors(_containers(self._module))
        return [t for key, t in tensors.items() if key not in self._tensors]

    def has_changed(self) -> bool:
        """Whether the module holds another tensor than before, or other values in a buffer."""
        if self.new_tensors():
            return True
        dense = [(b, v) for b, v in self._buffers if b.layout is torch.strided and not b.is_meta]
        return any(not torch.equal(buffer, value) for buffer, value in dense)


_WITHOUT_TENSORS = {bool, int, float, str, type(None), dict, OrderedDict, set, list}
"""Types that are no tensor, or containers that are looked at by themselves."""
_INTERNAL = {"_parameters", "_modules"}  # no state; hooks are one, as some forwards install theirs


def _containers(module: nn.Module) -> Iterator[_Container]:
    """The attributes of every layer as a dict, and all plain containers in them."""
    visited_ids: set[int] = set()
    for layer in module.modules():
        attributes = vars(layer)
        yield attributes
        ahead = [
            attributes[n]
            for n in attributes
            if n not in _INTERNAL and type(attributes[n]) in _PLAIN
        ]
        while ahead:
            container = ahead.pop()
            if not isinstance(container, tuple):
                if id(container) in visited_ids:
                    continue
                visited_ids.add(id(container))
                yield container
            items = container.values() if isinstance(container, dict) else container
            ahead += [item for item in items if type(item) in _PLAIN]


def _tensors(containers: Iterable[_Container]) -> dict[int, Tensor]:
    tensors: dict[int, Tensor] = {}
    for container in containers:
        for value in container.values() if isinstance(container, dict) else container:
            if type(value) in _WITHOUT_TENSORS:  # most, and quicker than asking what it is
                continue
            if isinstance(value, Tensor):
                tensors[id(value)] = value
            elif type(value) is tuple:
                tensors.update((id(item), item) for item in value if isinstance(item, Tensor))
    return tensors
