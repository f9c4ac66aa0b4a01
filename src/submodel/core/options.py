"""Sections of a configuration: typed keys with descriptions; components add keys of their own.

A key of a section, such as ``name``, may name a component, which declares keys of its own. The
section then has a class composed of both, so it accepts a key exactly if something uses it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, cast, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    field_validator,
)

from submodel.core.errors import ConfigError

if TYPE_CHECKING:
    from submodel.core.registry import Registry

# computing an exact fraction of a long number, or of one with a large exponent, may not end
_SHORT_NUMBER = re.compile(r"[-+\s\d_./]{1,400}(e[-+]?\d{1,3})?\s*", re.I)


def fraction(value: object) -> object:
    """Convert text such as "1/16" to a number; return anything else unchanged.

    >>> fraction("1/16"), fraction("0.5"), fraction("1e999999999")
    (0.0625, 0.5, '1e999999999')
    """
    if isinstance(value, str) and _SHORT_NUMBER.fullmatch(value):
        try:
            return float(Fraction(value))
        except (ValueError, ArithmeticError):  # 0.5/3, 1/0
            return value
    return value


LARGEST = 10**12  # of a count: a larger one is a mistake, and some arithmetic would overflow
Capacity = Annotated[float, BeforeValidator(fraction), Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Positive = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
_IS_PATH = object()
PathText = Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, Path) else v), _IS_PATH]


class Section(BaseModel):
    """A part of a configuration: frozen, and closed to unknown keys.

    Defaults are checked like given values, so that a key means the same either way: the default
    10 of a key that takes fractions is 10.0. No number of any key is infinite or NaN.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )
    choices: ClassVar[
        Mapping[str, Registry[Any]]
    ] = {}  # key -> registry of the components that it may name

    base: ClassVar[type[Section] | None] = None  # of a composed class: the section that chooses

    def with_values(self, **values: Any) -> Self:
        """Return the section with other values, without the keys of components no longer chosen.

        Args:
            values: the changed values, by key.
        """
        base = type(self).base or type(self)
        after = {**self.model_dump(include=self.model_fields_set), **values}
        kind = compose(base, after)
        return cast(Self, kind(**{k: v for k, v in after.items() if k in kind.model_fields}))

    def __new__(cls, **values: Any) -> Self:  # noqa: D102 - composes the class of the section
        return super().__new__(cls if is_composed(cls) else compose(cls, values))

    @field_validator("*", mode="wrap")
    @classmethod
    def _one_of_the_choices(
        cls, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        name = info.field_name or ""
        kind = cls.choices.get(name)
        if kind is None or (value is None and cls.model_fields[name].default is None):
            return handler(value)
        return kind.check_name(value, handler)


class ChoosingSection(Section):
    """A section that names components; the keys of the chosen components are attributes, too."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class FreeOptions(Section):
    """Keyword arguments of a component that declares no keys."""

    options: dict[str, Any] = Field({}, description="keyword arguments of a custom component")


class UnknownOptions(Section):
    """Options of a component whose code is not installed here; checked when it is made."""

    model_config = ConfigDict(extra="allow", frozen=True)


_S = TypeVar("_S", bound=Section)


def compose(base: type[_S], values: Mapping[str, Any]) -> type[_S]:
    """Return the class of a section with these values: ``base`` and the chosen components."""
    if not base.choices:
        return base
    parts: list[type[Section]] = [base]
    waiting = list(base.choices)
    while waiting:
        key = waiting.pop(0)
        kind = next(part.choices[key] for part in parts if key in part.choices)
        field = next(part.model_fields[key] for part in parts if key in part.model_fields)
        name = values.get(key, field.default)
        if not kind.accepts(name):
            continue  # the validator of the field reports it
        try:
            options = kind.find(name).options
        except ConfigError:
            options = UnknownOptions
        if not any(issubclass(part, options) for part in parts):
            parts.append(options)
            waiting += options.choices
    return _compose_class(base, tuple(parts[1:]))


def _subclass(name: str, bases: Any) -> Any:
    return create_model(name, __base__=bases)


@cache
def _compose_class(base: type[Any], parts: tuple[type[Section], ...]) -> type[Any]:
    section = _subclass(base.__name__, (*reversed(parts), base))
    section.__doc__, section.__module__ = base.__doc__, base.__module__
    section.choices = {key: kind for part in (base, *parts) for key, kind in part.choices.items()}
    section.base = base
    if UnknownOptions in parts:
        section.model_config["extra"] = "allow"
        section.model_rebuild(force=True)
    kind: type[Any] = section
    return kind


def is_path_key(section: type[Section], key: str) -> bool:
    """Return whether a key of a section holds the path of a file or folder."""
    field = section.model_fields[key]
    parts = get_args(field.annotation)
    return any(
        _IS_PATH in (*field.metadata, *getattr(p, "__metadata__", ())) for p in (None, *parts)
    )


def is_composed(section: type[Section]) -> bool:
    """Return whether a class of sections is composed already, or needs no composition."""
    return not section.choices or section.base is not None


def _validate(base: type[Section], value: object, handler: ValidatorFunctionWrapHandler) -> Section:
    if isinstance(value, base) or not isinstance(value, Mapping):
        whole: Section = handler(value)
        return whole
    return compose(base, value).model_validate(value)


if TYPE_CHECKING:
    WithChoices = Annotated[_S, None]
else:

    class WithChoices:
        """``WithChoices[SchemeSection]``: such a section, with the keys of chosen components."""

        def __class_getitem__(cls, base: type[Section]) -> Any:
            def validate(value: object, handler: ValidatorFunctionWrapHandler) -> Section:
                return _validate(base, value, handler)

            return Annotated[SerializeAsAny[base], WrapValidator(validate)]


__all__ = ["Capacity", "Count", "Decay", "PathText", "Positive", "Section"]
