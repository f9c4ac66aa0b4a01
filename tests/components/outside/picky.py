"""Components with reasons for not being defined, some of them malformed."""

from typing import Any

from pydantic import Field

from submodel.core import Count, Section


class Picky:
    """A component that is never defined, so that it must not be made."""

    class Options(Section):
        amount: Count = Field(3, description="of anything")

    @classmethod
    def problems(cls, options: Any, context: object) -> list[str]:
        return [f"{options.amount} of a {type(context).__name__}"]

    @classmethod
    def configured(cls, options: Any, context: object) -> object:
        raise AssertionError("it was made")


class Heir(Picky):
    """A component that inherits its problems."""


class Halves:
    """A merge rule for clients of equal weight."""

    @staticmethod
    def problems(options: Any, context: object) -> list[str]:  # noqa: ARG004
        alike = options.weights == "uniform"
        return [] if alike else [f"merge.weights: {options.weights!r} is not for halves"]

    def divisor(self, holder_weight: Any, total_weight: float) -> Any:
        return 2 * holder_weight


class Late:
    """A component that must be made before it can report problems."""

    def problems(self, options: Any, context: object) -> list[str]:
        return ["too late"]


class Silent:
    """A component that returns its problem as one string."""

    @classmethod
    def problems(cls, options: Any, context: object) -> str:
        return "no"


class Clumsy:
    """A component whose check fails."""

    @classmethod
    def problems(cls, options: Any, context: object) -> list[str]:
        raise LookupError("no words")
