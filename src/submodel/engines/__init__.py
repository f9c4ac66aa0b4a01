"""Engines, which run tasks one by one, in stacks or in several processes."""

from typing import TYPE_CHECKING

from submodel.core.lazy import lazily

if TYPE_CHECKING:
    from submodel.engines.native.library import find_compiler
    from submodel.engines.select import EngineContext
    from submodel.engines.serial import SerialEngine

__all__ = ["EngineContext", "SerialEngine", "find_compiler"]
__getattr__ = lazily(__name__)
