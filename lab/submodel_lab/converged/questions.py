"""Questions to converged runs: their arms, contrasts and measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from submodel.comparison import BY_TEST_BATCH
from submodel_lab.converged.arms import ConvergedArm, arms_of

EQUAL_LOSS = " at equal train loss"
"""Ending of measures that are read where both runs of a pair first had the same train loss."""
AT_ROUND = " at round "
"""Measures with this text and a number are read at the last evaluation until that round."""
_SIZES = ("accuracy", "mean over sizes", "smallest size", "worst quarter")


@dataclass(frozen=True)
class Contrast:
    """One method minus another in a setting, by some measure; losses and gaps: less is better."""

    setting: str
    better: str
    worse: str
    measure: str = "accuracy"

    @property
    def sides(self) -> tuple[ConvergedArm, ConvergedArm]:
        """Both arms."""
        return ConvergedArm(self.setting, self.better), ConvergedArm(self.setting, self.worse)


@dataclass(frozen=True)
class OpenQuestion:
    """A question with the contrasts that answer it; contrasts of a measure are judged together."""

    name: str
    title: str
    contrasts: Sequence[Contrast]
    paper: str = ""  # published figures
    guides_choice: bool = True  # whether a user would choose between its methods

    @property
    def families(self) -> list[list[Contrast]]:
        """Contrasts by measure; each group is judged together, independently of the others."""
        measures = dict.fromkeys(contrast.measure for contrast in self.contrasts)
        return [[c for c in self.contrasts if c.measure == measure] for measure in measures]

    @property
    def arms(self) -> list[ConvergedArm]:
        """Arms of the question."""
        pairs = [(c.setting, method) for c in self.contrasts for method in (c.better, c.worse)]
        return arms_of(pairs)


def _contrasts(
    settings: Sequence[str], pairs: Sequence[tuple[str, str]], measures: Sequence[str]
) -> list[Contrast]:
    return [
        Contrast(setting, better, worse, measure)
        for setting in settings
        for better, worse in pairs
        for measure in measures
    ]


_CIFAR = ("cifar-low", "cifar-high")
_LIST = (
    OpenQuestion(
        "static",
        "(b) rolling - static",
        _contrasts((*_CIFAR, "fashion"), [("rolling", "static")], _SIZES),
        "FedRolex: +5.5 (L = 2), +11.3 (L = 5); FedLASE: -8.8, +1.2; FIARSE, size 1: +5.3",
    ),
    OpenQuestion(
        "random",
        "(a) rolling - random (Bernoulli), rolling - dropout (fixed size)",
        _contrasts(
            (*_CIFAR, "fashion"),
            [("rolling", "random"), ("rolling", "dropout")],
            ("accuracy", "mean over sizes"),
        ),
        "FedRolex: +22.8 (L = 2), +8.3 (L = 5) points over random, layers not aligned",
    ),
    OpenQuestion(
        "order",
        "(d) shuffled - sequential windows",
        _contrasts(("fashion",), [("rolling", "rolling-sequential")], _SIZES),
    ),
    OpenQuestion(
        "merge",
        "(e) selective - fill_in",
        _contrasts(
            ("fashion",),
            [(method, f"{method}-fill_in") for method in ("rolling", "static", "dropout")],
            ("accuracy", "mean over sizes"),
        ),
    ),
    OpenQuestion(
        "capacities",
        "(f) dynamic - fixed capacities",
        [
            *_contrasts(
                ("fashion",),
                [(method, f"{method}-fixed") for method in ("rolling", "static", "dropout")],
                ("accuracy", "mean over sizes"),
            ),
            *_contrasts(("fashion",), [("rolling-fixed", "static-fixed")], _SIZES),
        ],
    ),
    OpenQuestion(
        "smallest",
        "(c) rolling - static, against the smallest capacity at equal mean capacity",
        _contrasts(
            [f"fashion-1-{n}" for n in (2, 4, 8, 16)],
            [("rolling", "static")],
            ("accuracy", "mean over sizes"),
        ),
        "FedLASE: the sign follows the smallest capacity",
    ),
    OpenQuestion(
        "gap",
        "(g) masking - full: the train/test gap (Tab. 1 and 2)",
        _contrasts(
            ("overfit",),
            [("dropout-at-1-2", "full"), ("dropout-at-1-4", "full")],
            [
                f"{measure}{where}"
                for where in ("", EQUAL_LOSS)
                for measure in ("loss gap", "accuracy gap")
            ],
        ),
        "loss gap 0.0126 against 0.0190 (high), 0.0154 against 0.0330 (low)",
    ),
    OpenQuestion(
        "table3",
        "(h) rolling - static at 2,000 rounds, capacities 1/4 and 1/8 (Tab. 3)",
        _contrasts(
            ("table3",),
            [("rolling", "static")],
            [
                *("accuracy", "loss", "mean over sizes"),
                *(f"{measure}{AT_ROUND}2000" for measure in ("accuracy", "loss")),
            ],
        ),
        "CIFAR-100: 35.30 against 34.37 %, loss 2.4681 against 2.5026",
    ),
    OpenQuestion(
        "exclusive",
        "sub-models - exclusive training",
        [
            *_contrasts(
                ("cifar-low",),
                [("rolling", "exclusive-equal-bytes"), ("static", "exclusive-equal-bytes")],
                ("accuracy", "mean over sizes"),
            ),
            *_contrasts(
                ("fashion",),
                [
                    (method, exclusive)
                    for exclusive in ("exclusive-fixed", "exclusive-fixed-equal-bytes")
                    for method in ("rolling-fixed", "static-fixed")
                ],
                _SIZES,
            ),
        ],
        "Flower's DepthFL page, CIFAR-100: HeteroFL 57.61, exclusive up to 66.08",
    ),
    OpenQuestion(
        "equal-cost",
        "(i) sub-models - full at equal bytes (and so, nearly, FLOPs)",
        _contrasts(
            ("cifar-low", "fashion"),
            [("rolling", "full-equal-bytes"), ("static", "full-equal-bytes")],
            ("accuracy",),
        ),
    ),
    OpenQuestion(
        "wide",
        "(b) again: rolling - static in a net twice as wide",
        _contrasts(("cifar-wide",), [("rolling", "static")], _SIZES),
        "FedRolex and FIARSE, width 64: +11.3, +5.3",
    ),
    OpenQuestion(
        "habits",
        "(b) again: rolling - static by the habits of published code, at convergence",
        [
            Contrast("cifar-low", "rolling-rate-0.05", "static"),
            *_contrasts(
                _CIFAR,
                [("rolling", "static")],
                (BY_TEST_BATCH, f"accuracy{AT_ROUND}200", f"accuracy{AT_ROUND}500"),
            ),
        ],
        "published code scores with the statistics of test batches, and has one learning rate "
        "for all; here 0.05, which static takes by itself",
        guides_choice=False,
    ),
    OpenQuestion(
        "factors",
        "where published gaps may come from: one factor at a time",
        [
            *_contrasts(
                ("factors",),
                [("rolling", "static"), ("rolling", "dropout")],
                ("accuracy", BY_TEST_BATCH, f"accuracy{AT_ROUND}100"),
            ),
            *_contrasts(
                ("factors",),
                [("rolling-rate-0.1", "static-rate-0.1"), ("rolling", "dropout-independent")],
                ("accuracy",),
            ),
        ],
        "published code scores with the statistics of test batches, draws the layers of random "
        "masks independently, and has one learning rate for all",
        guides_choice=False,
    ),
)
QUESTIONS = {question.name: question for question in _LIST}
"""Questions in the order of running."""
