"""A schedule, as a plain class: at work for some rounds, then at rest."""


class Rests:
    def __init__(self, after: int) -> None:
        self.after = after

    def factor(self, round_: int) -> float:
        return 1.0 if round_ < self.after else 0.0
