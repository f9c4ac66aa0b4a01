"""Registries of components, built in or added by users, that a configuration names.

A component is a class or a function. It is found by a built-in name, by an entry point of an
installed package, or by its path, ``package.module:Name``. In Python, the class, the function or a
made object may replace the name (`Registry.named`). A component may declare

- ``Options``: the keys it adds to its section of the configuration, typed and described. A
  component without them takes keyword arguments from the key ``options`` of the section;
- ``configured(options, context)``: a constructor from these options, for a component whose keys are
  not simply its arguments. ``context`` depends on the registry: the sizes of the axes for a scheme,
  the shape of the inputs for a model;
- ``problems(options, context)``, of a class a classmethod: the reasons why the component is not
  defined for the run, as sentences that begin with a key. It is called before the component is
  made; of a scheme, the method of that name is called on the made object.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from inspect import getattr_static
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic_core import PydanticCustomError

from submodel.core.errors import ConfigError, SubmodelError, plain, refuse, wrap_errors
from submodel.core.options import FreeOptions, Section

__all__ = ["Component", "Entry", "Kind", "Offer", "Registry", "find"]

_T = TypeVar("_T")
_GIVEN = "python:"
_PLAIN = (str, bytes, int, float, Mapping, list, tuple, type)  # values from files, and classes
_given: dict[str, object] = {}  # the latest object of every name, for names read from a file


class GivenName(str):
    """The name of a component that was given in Python and has no path: ``python:Name``.

    It holds the component itself, so that two components of one name stay distinct in a process.
    """

    target: object

    def __new__(cls, name: str, target: object = None) -> GivenName:
        """Make the name of ``target``."""
        self = super().__new__(cls, name)
        self.target = target
        return self


@dataclass(frozen=True)
class Entry:
    """A built-in component: its path and a short description."""

    path: str
    about: str = ""
    argument: str = ""  # placeholder of the text after a colon: "NAME" for hf:NAME
    is_hidden: bool = False  # whether lists of choices leave it out


@dataclass(frozen=True)
class Component(Generic[_T]):
    """A class or function that was found by a name."""

    registry: Registry[_T]
    name: str
    target: Callable[..., Any]
    argument: str = ""  # the text after the colon, of a name such as hf:NAME
    is_made: bool = False  # whether the target is a made object, which has no keys any more

    @property
    def options(self) -> type[Section]:
        """Class of the keys that the component adds to its section."""
        if self.is_made:
            return Section
        options_class: type[Section] | None = _declaration(self.target, "Options")
        return options_class or (Section if self.registry.is_builtin(self.name) else FreeOptions)

    def problems(self, options: Any, context: object = None) -> list[str]:
        """Return the reasons why the component is not defined for a run; empty if there are none.

        Args:
            options: the section that names it, or its own keys.
            context: the context in which it would be made.
        """
        if self.is_made or self.registry.checks_made_objects:
            return []
        if _declaration(self.target, "problems") is None:
            return []
        where = f"{self.registry.key}: {self.name!r}"
        hook = getattr_static(self.target, "problems")
        if isinstance(self.target, type) and not isinstance(hook, classmethod | staticmethod):
            raise ConfigError(f"{where}: its problems(options, context) must be a classmethod")
        with wrap_errors(f"{where}: its problems(options, context) fails", ConfigError):
            problems: object = self.target.problems(options, context)  # type: ignore[attr-defined]
        if not isinstance(problems, list | tuple) or not all(isinstance(p, str) for p in problems):
            raise ConfigError(f"{where}: its problems are {problems!r}, not a list of sentences")
        return list(problems)

    def make(self, options: Any, context: object = None) -> _T:
        """Make the component; raises `ConfigError` if that fails or gives another kind."""
        refuse(self.problems(options, context))
        with wrap_errors(f"{self.registry.key}: {self.name!r} fails", ConfigError):
            try:
                thing = self._make(options, context)
            except TypeError as error:
                section = self.registry.key.partition(".")[0]
                wrong = f"{self.registry.key}: {self.name!r} cannot be made"
                if self.options is FreeOptions and options.options:
                    wrong = f"{section}.options: {self.name!r} does not take them"
                raise ConfigError(f"{wrong} ({error})") from None
        return self.registry.check(self.registry.adapted(thing), self.name)

    def _make(self, options: Any, context: object) -> Any:
        """Call a class or a factory; return a function that is itself the component."""
        if self.is_made:
            return self.target
        if _declaration(self.target, "configured") is not None:
            return self.target.configured(options, context)  # type: ignore[attr-defined]
        if self.options is FreeOptions:
            arguments = dict(options.options)
        else:
            arguments = {name: getattr(options, name) for name in self.options.model_fields}
        if not arguments and self.registry.is_function and inspect.isfunction(self.target):
            return self.target
        if self.registry.with_context and _takes_context(self.target):
            return self.target(context, **arguments)
        return self.target(**arguments)


@dataclass(frozen=True)
class Registry(Generic[_T]):
    """The components of one kind, such as schemes: their key and the known names."""

    noun: str
    key: str  # of the configuration, as "scheme.name"
    group: str  # of entry points by which packages add components
    entries: Mapping[str, Entry]
    expected: str = ""  # describes a component, for errors
    of_class: str = ""  # path of the class of all such components, if there is one
    members: tuple[str, ...] = ()  # otherwise the attributes that a component must have
    adapt: str = ""  # path of a function that converts a made object before it is checked
    wrapper: str = ""  # path of a function that wraps a found class of another package
    with_context: bool = False  # without `configured`: pass the context first, if it is accepted
    is_function: bool = False  # whether a plain function is a component, as for losses
    checks_made_objects: bool = False  # whether `problems` is called on them, as for schemes
    takes_objects: bool = True  # whether a made object may be given in Python
    advice: Mapping[str, str] = field(default_factory=dict)  # remedies, by unsupported name

    @property
    def prefixes(self) -> list[str]:
        """Names that take an argument."""
        return [name for name, entry in self.entries.items() if entry.argument]

    def names(self) -> list[str]:
        """Return every valid name, except paths."""
        public = {name: entry for name, entry in self.entries.items() if not entry.is_hidden}
        titles = [f"{n}:{o.argument}" if o.argument else n for n, o in public.items()]
        return [*titles, *(e.name for e in self._entry_points() if e.name not in self.entries)]

    def describe(self) -> str:
        """Return the names with their descriptions, for the description of the key."""
        parts = []
        for name, entry in self.entries.items():
            if not entry.is_hidden:
                title = f"{name}:{entry.argument}" if entry.argument else name
                parts.append(f"{title}: {entry.about}" if entry.about else title)
        return "; ".join([*parts, "or package.module:Name"])

    def named(self, value: Any) -> Any:
        """Return the name of a class, function or object given in Python; other values unchanged.

        An importable component is named by its path, so that a file can name it. Any other
        becomes a `GivenName`: to continue a run that has one, the object must be given again.
        """
        if isinstance(value, str):
            return value
        is_factory = isinstance(value, type | partial) or inspect.isroutine(value)
        if not is_factory and not self._is_thing(value):
            return value
        if (path := _path_of(value)) is not None:
            return next((name for name, o in self.entries.items() if o.path == path), path)
        return remember(value)

    def accepts(self, name: object) -> bool:
        """Return whether a name is valid; this does not import its code."""
        name = self.named(name)
        if not isinstance(name, str):
            return False
        prefix, colon, rest = name.partition(":")
        if colon:
            return bool(rest.strip()) and (prefix in self.prefixes or _is_dotted(name))
        is_ours = name in self.entries and name not in self.prefixes
        return is_ours or self._entry_point(name) is not None

    def check_name(self, value: Any, check: Callable[[Any], Any], verb: str = "is") -> Any:
        """Return the name that a value is or stands for; an invalid one is an error of its key.

        ``check`` is the validator of the key; ``verb`` begins the error.
        """
        name = self.named(value)
        checked = check(name)
        if not self.accepts(name):
            choices = f"{', '.join(self.names())} and not package.module:Name"
            if name in self.advice:
                choices += f"; {self.advice[name]}"
            raise PydanticCustomError(
                "not_a_choice", "{verb} not one of {it}", {"verb": verb, "it": choices}
            )
        return name if isinstance(name, GivenName) else checked

    def check_names(self, values: Any, check: Callable[[Any], Any]) -> Any:
        """Return the names of a list; an invalid one is an error of the configuration."""
        names = [self.named(v) for v in values] if isinstance(values, list | tuple) else values
        check(names)
        return [
            self.check_name(name, str, f"holds {plain(repr(name), 100)}, which is")
            for name in names
        ]

    def is_builtin(self, name: str) -> bool:
        """Return whether a component is built in."""
        prefix = name.partition(":")[0]
        return name in self.entries or prefix in self.prefixes

    def find(self, name: str) -> Component[_T]:
        """Return the component of a name; raises `ConfigError` if there is none."""
        name = self.named(name)
        if name.startswith(_GIVEN):
            target = name.target if isinstance(name, GivenName) else _given.get(name)
            if target is None:
                raise ConfigError(
                    f"{self.key}: {name!r} was given in Python, and no file can hold it; the "
                    "run continues only if it is given again: "
                    "submodel.open(run, parts=[...]), or submodel.train(..., resume=True)"
                )
            is_made = self._is_thing(target)
            found: Any = target if is_made else self._wrap(target)
            return Component(self, name, found, is_made=is_made)
        prefix = name.partition(":")[0]
        if builtin := self.entries.get(prefix if prefix in self.prefixes else name):
            return Component(self, name, find(builtin.path, self.key), self.argument(name))
        if is_path(name):
            return Component(self, name, self._wrap(find(name, self.key)))
        if (entry := self._entry_point(name)) is not None:
            return Component(self, name, self._wrap(find(entry.value, self.key, name)))
        advice = f"; {self.advice[name]}" if name in self.advice else ""
        raise ConfigError(f"{self.key}: {name!r} is not one of {', '.join(self.names())}{advice}")

    def argument(self, name: str) -> str:
        """Return the text after the colon of a name such as ``hf:NAME``; empty otherwise."""
        prefix, _, argument = name.partition(":")
        return argument if prefix in self.prefixes else ""

    def names_with_key(self, key: str) -> list[str]:
        """Return the names of the built-in components that have this key."""
        return [
            name
            for name in self.entries
            if key in self.find(f"{name}:x" if name in self.prefixes else name).options.model_fields
        ]

    def adapted(self, thing: Any) -> Any:
        """Return the made object, converted if it is of a foreign kind that can be adapted."""
        return find(self.adapt, self.key)(thing) if self.adapt else thing

    def check(self, thing: Any, name: str) -> _T:
        """Return the made object; raises `ConfigError` unless it is of the right kind."""
        if not self._is_one(thing):
            kind = type(thing).__name__
            raise ConfigError(f"{self.key}: {name!r} made a {kind}, which is not {self.expected}")
        component: _T = thing
        return component

    def _wrap(self, target: Any) -> Any:
        return find(self.wrapper, self.key)(target) if self.wrapper else target

    def _is_one(self, thing: object) -> bool:
        if self.of_class:
            kind: Any = find(self.of_class, self.key)
            return isinstance(thing, kind)
        if self.is_function and not self.members:
            return callable(thing)
        return all(hasattr(thing, name) for name in self.members)

    def _is_thing(self, value: object) -> bool:
        """Return whether a value given in Python is a made object rather than its factory."""
        if value is None or isinstance(value, _PLAIN) or inspect.isroutine(value):
            return False
        if not self.takes_objects:
            return False
        try:
            return self._is_one(self.adapted(value))
        except SubmodelError:
            return False

    def _entry_points(self) -> list[EntryPoint]:
        return list(entry_points(group=self.group))

    def _entry_point(self, name: str) -> EntryPoint | None:
        return next((entry for entry in self._entry_points() if entry.name == name), None)


def _declaration(target: object, name: str) -> Any:
    """Return a member that a class declares itself or inherits within its own package."""
    home = getattr(target, "__module__", "").partition(".")[0]
    for kind in getattr(target, "__mro__", ()):
        if name in vars(kind):
            same = kind.__module__.partition(".")[0] == home
            return getattr(target, name) if same else None
    return getattr(target, name, None)


def remember(thing: object) -> GivenName:
    """Return a name for an object given in Python; files that hold the name find it again.

    >>> remember(lambda: None)
    'python:lambda'
    """
    own_name = getattr(thing, "__name__", type(thing).__name__).strip("<>")
    name = GivenName(f"{_GIVEN}{own_name}", thing)
    _given[str(name)] = thing
    return name


def _path_of(thing: Any) -> str | None:
    """Return the path by which another process can import a class or function, if any."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module == "__main__":
        return None
    target: object = sys.modules.get(module)
    for part in name.split("."):
        target = getattr(target, part, None)
    return f"{module}:{name}" if target is thing and _is_dotted(f"{module}:{name}") else None


def _takes_context(target: Callable[..., Any]) -> bool:
    """Return whether a target requires a first argument, or names it ``context``.

    >>> _takes_context(lambda context=None: 0), _takes_context(lambda path="log.csv": 0)
    (True, False)
    """
    try:
        first = next(iter(inspect.signature(target).parameters.values()), None)
    except (TypeError, ValueError):  # a builtin without a signature
        return True
    if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        return False
    return first.default is first.empty or first.name == "context"


def is_path(name: str) -> bool:
    """Return whether a name is a path to code.

    >>> is_path("my_package.nets:make"), is_path("cnn")
    (True, False)
    """
    return ":" in name


def _is_dotted(path: str) -> bool:
    return all(part.isidentifier() for part in path.replace(":", ".").split("."))


def find(path: str, key: str, entry: str = "") -> Callable[..., Any]:
    """Import the object at ``package.module:name``; modules of the working folder count too.

    That folder is searched after all installed packages, so that its files never hide them. It is
    searched only for a path that is neither built in nor an entry point's.

    Args:
        path: the path.
        key: the key of the configuration that names it, for errors.
        entry: the name of the entry point that was given instead of the path, if any.
    """
    spelling = entry or path
    module_name, _, name = path.partition(":")
    is_installed = entry or module_name.partition(".")[0] == __name__.partition(".")[0]
    where = f"{key}: {spelling!r}"
    with wrap_errors(f"{where}: {module_name!r} fails", ConfigError):
        try:
            if not is_installed:
                _add_working_folder()
            target: object = importlib.import_module(module_name)
        except ImportError as error:
            wrong = f"cannot import {module_name!r}: {error}{_hidden_by(module_name)}"
            raise ConfigError(f"{where}: {wrong}") from None
    for part in name.split("."):
        if not hasattr(target, part):
            wrong = f"{module_name!r} has no {part!r}{_hidden_by(module_name)}"
            raise ConfigError(f"{where}: {wrong}")
        target = getattr(target, part)
    if not callable(target):
        raise ConfigError(f"{where} is a {type(target).__name__}, not a factory")
    return target


_added_folders: set[str] = set()


def _add_working_folder() -> None:
    """Make modules of the working folder importable, after all others; remove earlier folders."""
    here = str(Path.cwd())
    earlier = _added_folders - {here}
    sys.path[:] = [folder for folder in sys.path if folder not in earlier]
    if here not in sys.path:
        sys.path.append(here)
        _added_folders.add(here)


def _hidden_by(module_name: str) -> str:
    """Name the installed module that hides a file of the working folder, and the remedy."""
    top = module_name.partition(".")[0]
    found = getattr(sys.modules.get(top), "__file__", None) or "built into Python"
    own = next((path for path in (Path(f"{top}.py"), Path(top)) if path.exists()), None)
    if own is None or top not in sys.modules or Path(found).is_relative_to(Path.cwd()):
        return ""
    return f" ({top!r} is {found}; rename {own} of the working folder)"


Kind, Offer = Registry, Entry  # former names
