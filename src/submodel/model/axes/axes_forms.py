"""The form of saved axes: a pydantic model for each kind of object that their JSON may hold.

Every object names its kind under the key ``""``, which is no name of a tensor or an axis. The keys
are those that were first written and stay, whatever the attributes are called today.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from submodel.model.axes.code_numbers import CodeNumbers, Comparison, Sizing
from submodel.model.axes.declare import Axes
from submodel.model.axes.layout import Along, Concatenation, FixedPart, Layout, Product
from submodel.model.axes.number import Attribute, Number, Operation, SizeOf

_Size = Annotated[int, Field(ge=0, lt=1 << 53)]
_Integer = Annotated[int, Field(gt=-(1 << 53), lt=1 << 53)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class FixedForm(_Form):
    """A part that is never cut."""

    kind: Literal["Fixed"] = Field(alias="")
    size: _Size

    def layout(self) -> Layout:
        """As a layout."""
        return FixedPart(self.size)


class AlongForm(_Form):
    """The units of one axis."""

    kind: Literal["Along"] = Field(alias="")
    axis: str
    size: _Size

    def layout(self) -> Layout:
        """As a layout."""
        return Along(self.axis, self.size)


class ProductForm(_Form):
    """Parts in row-major order."""

    kind: Literal["Product"] = Field(alias="")
    parts: tuple[LayoutForm, ...]

    def layout(self) -> Layout:
        """As a layout."""
        return Product(_layouts(self.parts))


class ConcatenationForm(_Form):
    """Parts one after another."""

    kind: Literal["Concatenation"] = Field(alias="")
    parts: tuple[LayoutForm, ...]

    def layout(self) -> Layout:
        """As a layout."""
        return Concatenation(_layouts(self.parts))


class AttributeForm(_Form):
    """An integer that a module stores."""

    kind: Literal["Attribute"] = Field(alias="")
    name: str

    def number(self) -> Number:
        """As a number."""
        return Attribute(self.name)


class SizeOfForm(_Form):
    """The size of a dimension."""

    kind: Literal["SizeOf"] = Field(alias="")
    dimension: LayoutForm

    def number(self) -> Number:
        """As a number."""
        return SizeOf(self.dimension.layout())


class OperationForm(_Form):
    """An operation on two numbers."""

    kind: Literal["Computed"] = Field(alias="")
    name: Literal["add", "sub", "mul", "floordiv", "mod"] = Field(alias="operation")
    first: NumberForm = Field(alias="left")
    second: NumberForm = Field(alias="right")

    def number(self) -> Number:
        """As a number."""
        return Operation(self.name, _number(self.first), _number(self.second))


class SizingForm(_Form):
    """A number that makes a dimension."""

    kind: Literal["Made"] = Field(alias="")
    number: NumberForm
    dimension: LayoutForm
    where: str
    groups: bool = False
    line: str = ""

    def sizing(self) -> Sizing:
        """As the trace knows it."""
        number, dimension = _number(self.number), self.dimension.layout()
        return Sizing(number, dimension, self.where, self.groups, self.line)


class ComparisonForm(_Form):
    """Two numbers that the code compares."""

    kind: Literal["Compared"] = Field(alias="")
    one: NumberForm
    other: NumberForm
    equal: bool
    line: str = ""

    def comparison(self) -> Comparison:
        """As the trace knows it."""
        return Comparison(_number(self.one), _number(self.other), self.equal, self.line)


class NamesForm(_Form):
    """A set of names."""

    kind: Literal["set"] = Field("set", alias="")
    items: tuple[str, ...] = ()

    def names(self) -> frozenset[str]:
        """As a set."""
        return frozenset(self.items)


class CodeNumbersForm(_Form):
    """What a forward did with numbers."""

    kind: Literal["Stored"] = Field(alias="")
    sizings: tuple[SizingForm, ...] = Field((), alias="made")
    elsewhere: NamesForm = NamesForm()
    comparisons: tuple[ComparisonForm, ...] = Field((), alias="compared")
    layers: tuple[SizingForm, ...] = ()
    grouping_modules: NamesForm = Field(NamesForm(), alias="grouped")
    values: NamesForm = NamesForm()

    def code_numbers(self) -> CodeNumbers:
        """As the trace knows it."""
        return CodeNumbers(
            tuple(form.sizing() for form in self.sizings),
            self.elsewhere.names(),
            tuple(form.comparison() for form in self.comparisons),
            tuple(form.sizing() for form in self.layers),
            self.grouping_modules.names(),
            self.values.names(),
        )


class AxesForm(_Form):
    """The axes of a model, and all that is known of them."""

    kind: Literal["Axes"] = Field(alias="")
    sizes: dict[str, _Size]
    layouts: dict[str, tuple[LayoutForm, ...]]
    frozen: dict[str, str] = {}
    kept_whole: dict[str, str] = Field({}, alias="kept")
    inexact: dict[str, tuple[str, ...]] = {}
    unused_tensors: tuple[str, ...] = Field((), alias="unused")
    code_numbers: CodeNumbersForm | None = Field(None, alias="stored")
    measured: tuple[float, ...] = ()
    doubt: str = "nobody has measured it"
    lines: dict[str, str] = {}
    notes: tuple[str, ...] = ()

    def axes(self) -> Axes:
        """As a trace finds them."""
        numbers = self.code_numbers
        return Axes(
            sizes=self.sizes,
            layouts={name: _layouts(forms) for name, forms in self.layouts.items()},
            frozen=self.frozen,
            kept_whole=self.kept_whole,
            inexact=self.inexact,
            unused_tensors=self.unused_tensors,
            code_numbers=None if numbers is None else numbers.code_numbers(),
            measured=self.measured,
            doubt=self.doubt,
            lines=self.lines,
            notes=self.notes,
        )


LayoutForm = Annotated[
    FixedForm | AlongForm | ProductForm | ConcatenationForm, Field(discriminator="kind")
]
_FormulaForm = Annotated[AttributeForm | SizeOfForm | OperationForm, Field(discriminator="kind")]
NumberForm = _Integer | _FormulaForm


def _layouts(forms: tuple[LayoutForm, ...]) -> tuple[Layout, ...]:
    return tuple(form.layout() for form in forms)


def _number(form: NumberForm) -> Number:
    return form if isinstance(form, int) else form.number()
