"""A schedule as a plain class: active for some rounds, then zero."""


class Rests:
    def __init__(self, after: int) -> None:
        self.after = after

    def factor(self, round_: int) -> float:
        return 1.0 if round_ < self.after else 0.0
