"""Objects that are not components, and a component with a required key."""

from pydantic import Field

from submodel.core import Count, Section


class Nothing:
    """An object of no component type."""

    def __init__(self, *given: object) -> None:
        pass


class Raising:
    """A component whose constructor fails."""

    def __init__(self, *given: object) -> None:
        raise ValueError("no luck today")


class Needy:
    """A component with a key without a default."""

    class Options(Section):
        amount: Count = Field(description="of anything")

    def __init__(self, *given: object, amount: int) -> None:
        self.amount = amount
