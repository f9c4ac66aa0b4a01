"""Former names of modules: importing one gives the module under its current name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from submodel.core.errors import SubmodelError
from submodel.core.extensions import FROM_LAB

__all__ = ["install"]

_CORE = ("amounts", "errors", "extensions", "extras", "files", "heap", "lazy", "options")
FORMER = {
    **{f"submodel.{name}": f"submodel.core.{name}" for name in (*_CORE, "randomness")},
    "submodel.plugins": "submodel.core.registry",
    "submodel.experiments": "submodel.comparison",
    "submodel.prepare": "submodel.config",
    "submodel.local": "submodel.tasks",
    "submodel.presentation": "submodel.drawing",
    "submodel.presentation.tables": "submodel.core.tables",
    "submodel.report.plots.registry": "submodel.report.plots.figure_kinds",
    "submodel.schemes.base": "submodel.schemes.scheme",
    "submodel.tasks.base": "submodel.tasks.task",
    "submodel.theory": "submodel_lab.theory",
}
"""The current name of a module or package, by its former name."""


class _FormerNames:
    """A finder and loader of modules by their former names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        del path, target
        is_former = _today(name) is not None
        return ModuleSpec(name, self, is_package=name in FORMER) if is_former else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make an empty module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        today = _today(module.__name__) or ""
        try:
            sys.modules[module.__name__] = importlib.import_module(today)
        except ModuleNotFoundError as error:
            if error.name != "submodel_lab":
                raise
            raise SubmodelError(f"{module.__name__} {FROM_LAB}") from None


def _today(name: str) -> str | None:
    """Return the current name; None for a module without a former name.

    >>> _today("submodel.local.optimisers"), _today("submodel.prepare"), _today("numpy")
    ('submodel.tasks.optimisers', 'submodel.config', None)
    """
    if name in FORMER:
        return FORMER[name]
    package, _, module = name.rpartition(".")
    return f"{FORMER[package]}.{module}" if package in FORMER else None


def install() -> None:
    """Make former names importable; a second call changes nothing."""
    if not any(isinstance(finder, _FormerNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _FormerNames())  # before the one that finds files
