"""Sections of a configuration: typed keys with descriptions; some name components with more keys.

A section may leave a choice: its key ``name``, say, names a component, which has keys of its own.
The section of a configuration then is of a class composed of both, so a key is there exactly if
something uses it.
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

# An exact fraction of a long number, or of one with a large exponent, may take for ever.
_SHORT_NUMBER = re.compile(r"[-+\s\d_./]{1,400}(e[-+]?\d{1,3})?\s*", re.I)


def fraction(value: object) -> object:
    """Let a number be written as "1/16"; anything else stays as it is.

    >>> fraction("1/16"), fraction("0.5"), fraction("1e999999999")
    (0.0625, 0.5, '1e999999999')
    """
    if isinstance(value, str) and _SHORT_NUMBER.fullmatch(value):
        try:
            return float(Fraction(value))
        except (ValueError, ArithmeticError):  # 0.5/3, 1/0
            return value
    return value


LARGEST = 10**12  # of a count: what is more was not meant, and some arithmetic would not hold it
Capacity = Annotated[float, BeforeValidator(fraction), Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Positive = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
_IS_PATH = object()
PathText = Annotated[str, BeforeValidator(lambda v: str(v) if isinstance(v, Path) else v), _IS_PATH]


class Section(BaseModel):
    """A part of a configuration: unknown keys are refused, nothing changes.

    Defaults are checked as given values are, so that a key means the same either way: the default
    10 of a key that takes fractions is 10.0. No number of any key is infinite or none at all.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )
    choices: ClassVar[Mapping[str, Registry[Any]]] = {}  # key -> the components that it may name

    base: ClassVar[type[Section] | None] = None  # of a composed class: the section that chooses

    def with_values(self, **values: Any) -> Self:
        """The section with other values; keys that go with another choice are left out.

        Args:
            values: what is to be different, by key.
        """
        base = type(self).base or type(self)
        after = {**self.model_dump(include=self.model_fields_set), **values}
        kind = compose(base, after)
        return cast(Self, kind(**{k: v for k, v in after.items() if k in kind.model_fields}))

    def __new__(cls, **values: Any) -> Self:  # noqa: D102 - the section with what it chooses
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
    """A section that names components; the keys of those that are chosen are attributes, too."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class FreeOptions(Section):
    """The keyword arguments of a component that declares no keys."""

    options: dict[str, Any] = Field({}, description="keyword arguments of an own component")


class UnknownOptions(Section):
    """Of a component whose code is not here: whoever makes it will say so."""

    model_config = ConfigDict(extra="allow", frozen=True)


_S = TypeVar("_S", bound=Section)


def compose(base: type[_S], values: Mapping[str, Any]) -> type[_S]:
    """The class of a section with these values: ``base``, and the components that it chooses."""
    if not base.choices:
        return base
    parts: list[type[Section]] = [base]
    waiting = list(base.choices)
    while waiting:
        key = waiting.pop(0)
        kind = next(part.choices[key] for part in parts if key in part.choices)
        field = next(part.model_fields[key] for part in parts if key in part.model_fields)
        name = values.get(key, field.default)
        if not kind.knows(name):
            continue  # which the field says itself
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
    """Whether a key of a section holds the path of a file or folder."""
    field = section.model_fields[key]
    parts = get_args(field.annotation)
    return any(
        _IS_PATH in (*field.metadata, *getattr(p, "__metadata__", ())) for p in (None, *parts)
    )


def is_composed(section: type[Section]) -> bool:
    """Whether a class of sections has all keys that it will have."""
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
        """``WithChoices[SchemeSection]``: such a section, with the keys of what it chooses."""

        def __class_getitem__(cls, base: type[Section]) -> Any:
            def validate(value: object, handler: ValidatorFunctionWrapHandler) -> Section:
                return _validate(base, value, handler)

            return Annotated[SerializeAsAny[base], WrapValidator(validate)]


__all__ = ["Capacity", "Count", "Decay", "PathText", "Positive", "Section"]
