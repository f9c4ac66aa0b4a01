"""What is no component of any kind, and one that asks for a key."""

from pydantic import Field

from submodel.core import Count, Section


class Nothing:
    """Is not of any kind."""

    def __init__(self, *given: object) -> None:
        pass


class Raising:
    """Cannot be made."""

    def __init__(self, *given: object) -> None:
        raise ValueError("no luck today")


class Needy:
    """Has a key without a default."""

    class Options(Section):
        amount: Count = Field(description="of anything")

    def __init__(self, *given: object, amount: int) -> None:
        self.amount = amount
