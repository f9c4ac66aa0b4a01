"""Components that say why they are not defined for a run, and some that say it wrongly."""

from typing import Any

from pydantic import Field

from submodel.core import Count, Section


class Picky:
    """Is never defined; nothing of it may be made."""

    class Options(Section):
        amount: Count = Field(3, description="of anything")

    @classmethod
    def problems(cls, options: Any, context: object) -> list[str]:
        return [f"{options.amount} of a {type(context).__name__}"]

    @classmethod
    def configured(cls, options: Any, context: object) -> object:
        raise AssertionError("it was made")


class Heir(Picky):
    """Has the problems of the class that it extends."""


class Halves:
    """A merge rule for clients that count alike."""

    @staticmethod
    def problems(options: Any, context: object) -> list[str]:  # noqa: ARG004
        alike = options.weights == "uniform"
        return [] if alike else [f"merge.weights: {options.weights!r} is not for halves"]

    def divisor(self, holder_weight: Any, total_weight: float) -> Any:
        return 2 * holder_weight


class Late:
    """Would have to be made before it can be asked."""

    def problems(self, options: Any, context: object) -> list[str]:
        return ["too late"]


class Silent:
    """Says it in one word."""

    @classmethod
    def problems(cls, options: Any, context: object) -> str:
        return "no"


class Clumsy:
    """Fails to say it."""

    @classmethod
    def problems(cls, options: Any, context: object) -> list[str]:
        raise LookupError("no words")
